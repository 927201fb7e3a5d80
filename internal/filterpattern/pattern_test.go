package filterpattern_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/openpcs/openpcs/internal/filterpattern"
)

const (
	user = `{"user":{"id":1,"email":"John.Stiles@example.com"},"users":[{"id":2,"email":"John.Doe@example.com"},{"id":3,"email":"Jane.Doe@example.com"}],"actions":["GET","PUT","DELETE"],"coordinates":[[0,1,2],[4,5,6],[7,8,9]],"latency":5e2,"nothing":null,"flag":true,"off":false,"a.b":"dotted","list":[1,2,3],"code":"400","ip":"123.123.4.5"}`
	web  = `127.0.0.1 - frank [10/Oct/2000:13:25:15 -0700] "GET /index.html HTTP/1.0" 404 1534`
)

func TestPatterns(t *testing.T) {
	tests := []struct {
		pattern, message string
		want             bool
	}{
		{"", "anything", true},
		{"  ", "anything", true},
		{`""`, "anything", true},
		// Terms are found within words too, and case counts.
		{"ERROR", "[ERROR] A fatal exception has occurred", true},
		{"ERROR", "Exiting with ERRORCODE: -1", true},
		{"ERROR", "an error", false},
		{"AUDIT_RPCS", "[2026-06-01T02:34:54.197+00:00] AUDIT_RPCS: [slurmctld-primary:6817(fd:18)] msg_type=REQUEST_PING uid=0", true},
		{"ERROR Exception", "[ERROR] Caught IllegalArgumentException", true},
		{"ERROR Exception", "[ERROR] Caught it", false},
		{`"ERROR" - "Exiting"`, "Exiting with ERRORCODE: -1", false},
		{`"ERROR" -Exiting`, "ERROR in the middle", true},
		{"-DEBUG", "INFO", true},
		{"-DEBUG", "DEBUG", false},
		{`"process the request"`, "Failed to process the request", true},
		{`"process the request"`, "Failed to process  the request", false},
		{`"a \"quoted\" \\ word"`, `there is a "quoted" \ word`, true},
		{"?ERROR ?WARN", "WARN message", true},
		{"?ERROR ?WARN", "INFO message", false},
		{"?ERROR ?WARN -message", "WARN message", false},
		{"?ERROR ?WARN -other", "WARN message", true},
		{"?ERROR message", "INFO message", true},
		{`?"exit code" ?x`, "the exit code", true},
		{"größe", "die größe", true},
		{"%AUTHORIZED%", "[ERROR 401] UNAUTHORIZED REQUEST", true},
		{`%user-[0-9]{2,}\(%`, "user-12(x)", true},
		{`%^[hc]at%`, "a cat", false},
		{`-%[hc]at%`, "a cat", false},

		{`{ $.user.id = 1 }`, user, true},
		{`{$.user.id=1}`, user, true},
		{`{ ($.user.id = 1) && ($.users[0].email = "John.Doe@example.com") }`, user, true},
		{`{ ($.user.id = 2 && $.users[0].email = "nonmatch") || $.actions[2] = "GET" }`, user, false},
		{`{ $.user.email = "John.Stiles@example.com" || $.coordinates[0][1] = nonmatch && $.actions[2] = nomatch }`, user, true},
		{`{ ($.user.email = "John.Stiles@example.com" || $.coordinates[0][1] = nonmatch) && $.actions[2] = nomatch }`, user, false},
		{`{ $.list = 1 }`, user, false},
		{`{ $.list != 1 }`, user, false},
		{`{ $.list[2] >= 3 }`, user, true},
		{`{ $.list[3] = 3 }`, user, false},
		{`{ $.list[*] = 2 }`, user, true},
		{`{ $.users[*].email = "Jane*" }`, user, true},
		{`{ $.users[*].email = "Joan*" }`, user, false},
		{`{ $.latency = 500 }`, user, true},
		{`{ $.latency > 499.5 && $.latency <= +5e2 && $.latency < 10e3 }`, user, true},
		{`{ $.latency < 500 }`, user, false},
		{`{ $.code = 400 }`, user, true},
		{`{ $.code > 300 }`, user, false}, // a string is no number
		{`{ $.ip = 123.123.* }`, user, true},
		{`{ $.ip != 123.123.* }`, user, false},
		{`{ $.user.email = "*@example.com" }`, user, true},
		{`{ $.user.email = *Stiles* }`, user, true},
		{`{ $.user.email = "Jo*com" }`, user, false}, // within a text a * is one
		{`{ $.user.email = "*" }`, user, true},
		{`{ $.none = "*" }`, user, false},
		{`{ $.user.email = %^John\.[A-Z]% }`, user, true},
		{`{ $.user.email != %^John% }`, user, false},
		{`{ $.nothing IS NULL }`, user, true},
		{`{ $.none IS NULL }`, user, false},
		{`{ $.none NOT EXISTS }`, user, true},
		{`{ $.nothing NOT EXISTS }`, user, false},
		{`{ $.user EXISTS }`, user, true},
		{`{ $.flag IS TRUE && $.off is false }`, user, true},
		{`{ $.off IS TRUE }`, user, false},
		{`{ $["a.b"] = dotted }`, user, true},
		{`{ $.['a.b'] = "dotted" }`, user, true},
		{`{ $.user.id = 1 }`, "user.id = 1", false},
		{`{ $.user.id = 1 }`, `[{"user":{"id":1}}]`, false},
		{`{ $.user.id = 1 }`, `{"user":{"id":1}} x`, false},
		{`{ $.n = 9007199254740993 }`, `{"n":9007199254740993}`, true},

		{`[ip, user, username, timestamp, request, status_code, bytes]`, web, true},
		{`[ip, user, username, timestamp, request, status_code]`, web, false},
		{`[ip, user, username, timestamp, request, status_code, bytes, more]`, web, false},
		{`[..., status_code = 404, bytes]`, web, true},
		{`[ip, user, ..., status_code = 4*, bytes > 1000]`, web, true},
		{`[..., bytes > 1000 && bytes < 1500]`, web, false},
		{`[..., request = *html*, status_code = 4* && status_code != 403, bytes]`, web, true},
		{`[..., request=*.html*, status_code=4*,]`, web, true},
		{`[ip = 127.*, ...]`, web, true},
		{`[ip, user, username = frank, ...]`, web, true},
		{`[ip, user, username = "joe" || username = %^fr%, ...]`, web, true},
		{`[w1=ERROR, w2]`, "ERROR message", true},
		{`[w1=ERROR || w1=WARN, w2]`, "WARN message", true},
		{`[w1=!ERROR&&w1=!WARN, w2]`, "WARN message", false},
		{`[w1=!ERROR&&w1=!WARN, w2]`, "INFO message", true},
		{`[a, b]`, `x "y z`, false}, // a quote without its end is no bracket
		{`[...]`, "", true},
	}
	for _, tt := range tests {
		p, err := filterpattern.Parse(tt.pattern)
		if err != nil {
			t.Errorf("%s: %v", tt.pattern, err)
			continue
		}
		if got := p.Match([]byte(tt.message)); got != tt.want {
			t.Errorf("%s on %.60s: got %v, want %v", tt.pattern, tt.message, got, tt.want)
		}
	}
}

func TestBadPatterns(t *testing.T) {
	tests := []struct {
		pattern string
		at      int
		says    string
	}{
		{"AUDIT_RPCS:", 10, `as in "AUDIT_RPCS:"`},
		{"ok exit-code", 7, "double quotes"},
		{`"open`, 0, "no end"},
		{"a -", 3, "missing"},
		{"%open", 0, "no end"},
		{"%(a)%", 1, "parentheses"},
		{"%ä%", 1, "'ä'"},
		{"%a!%", 2, "'!'"},
		{"%%", 0, "empty"},
		{"%[%", 0, "missing closing ]"},
		{"%a% %b% %c%", 8, "2 regular expressions"},
		{"{ $.a = 1", 9, "}"},
		{"{ a = 1 }", 2, "selector"},
		{"{ $ = 1 }", 3, "selector"},
		{"{ $. = 1 }", 4, "name"},
		{"{ $.a[x] = 1 }", 6, "number of an element"},
		{"{ $.a[1 = 1 }", 7, "]"},
		{"{ $.a ~ 1 }", 6, "operator"},
		{"{ $.a > x }", 8, "compares numbers"},
		{"{ $.a = }", 8, "value"},
		{"{ $.a = x@y }", 9, "double quotes"},
		{"{ $.a IS MAYBE }", 9, "NULL"},
		{"{ $.a NOT NULL }", 10, "EXISTS"},
		{"{ ($.a = 1 }", 11, ")"},
		{"{ $.a = 1 && }", 13, "selector"},
		{"{ $.a = 1 } x", 12, "end of the pattern"},
		{"[a, b", 5, "comma"},
		{"[..., ..., a]", 5, "once"},
		{"[a = 1 && b = 2]", 10, `"b" is not "a"`},
		{"[a b]", 3, "operator"},
		{"größe {", 6, "double quotes"},
		{strings.Repeat("a", 1025), 1024, "1025 characters"},
	}
	for _, tt := range tests {
		_, err := filterpattern.Parse(tt.pattern)
		var e *filterpattern.Error
		if !errors.As(err, &e) {
			t.Errorf("%.40s: got %v", tt.pattern, err)
			continue
		}
		if e.At != tt.at || !strings.Contains(e.Error(), tt.says) {
			t.Errorf("%.40s: got %q at %d, want %q at %d", tt.pattern, e.Message, e.At, tt.says, tt.at)
		}
	}
}

// FuzzPattern: whatever a pattern says, reading it and matching end, and soon.
func FuzzPattern(f *testing.F) {
	for _, seed := range []string{
		`ERROR -"x y" ?z %a+b%`, `{ ($.a[0].b = "x*" || $.c IS NULL) && $["d"] NOT EXISTS && $.e[*] >= 1e3 }`,
		`[ip, ..., status = 4* && status != 403, bytes > 1]`, `{ $.a = %(%`, "[a=\"\xff", `{{{((($.`,
		"{ $.a[*][*][*][*] = 1 }",
	} {
		f.Add(seed, user)
		f.Add(seed, web)
	}
	f.Fuzz(func(t *testing.T, pattern, message string) {
		began := time.Now()
		p, err := filterpattern.Parse(pattern)
		var e *filterpattern.Error
		if err != nil && (!errors.As(err, &e) || e.Message == "" || e.At < 0 || e.At > len(pattern)) {
			t.Fatalf("%q: %v", pattern, err)
		}
		if err == nil {
			p.Match([]byte(message))
		}
		// Far beyond anything but work that grows faster than its input.
		if took := time.Since(began); took > 20*time.Second {
			t.Fatalf("%q on %d bytes took %v", pattern, len(message), took)
		}
	})
}
