package slurm

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// MaxHosts bounds how many names one host list may stand for.
const MaxHosts = 100_000

// Expand returns the names a Slurm host list stands for, in the order
// written: "a[1,3-4]b,c" gives a1b a3b a4b c. Zero padding is kept. It
// refuses lists of more than MaxHosts names, empty and reversed ranges, and
// unbalanced brackets.
func Expand(list string) ([]string, error) {
	var out []string
	for rest := list; rest != ""; {
		var word string
		var err error
		word, rest, err = cutWord(rest)
		if err != nil {
			return nil, fmt.Errorf("parse host list %q: %w", list, err)
		}
		names, err := expandWord(word)
		if err != nil {
			return nil, fmt.Errorf("parse host list %q: %w", list, err)
		}
		if len(out)+len(names) > MaxHosts {
			return nil, fmt.Errorf("parse host list: more than %d names", MaxHosts)
		}
		out = append(out, names...)
	}
	return out, nil
}

// cutWord splits at the first comma outside brackets.
func cutWord(s string) (word, rest string, err error) {
	depth := 0
	for i, c := range s {
		switch c {
		case '[':
			depth++
		case ']':
			depth--
		case ',':
			if depth == 0 {
				if i == 0 || i == len(s)-1 {
					return "", "", fmt.Errorf("empty name")
				}
				return s[:i], s[i+1:], nil
			}
		}
		if depth < 0 || depth > 1 {
			return "", "", fmt.Errorf("unbalanced brackets")
		}
	}
	if depth != 0 {
		return "", "", fmt.Errorf("unbalanced brackets")
	}
	return s, "", nil
}

func expandWord(word string) ([]string, error) {
	open := strings.IndexByte(word, '[')
	if open < 0 {
		if strings.ContainsAny(word, " \t\r\n") {
			return nil, fmt.Errorf("white space in name %q", word)
		}
		return []string{word}, nil
	}
	end := open + strings.IndexByte(word[open:], ']')
	heads, err := expandRanges(word[open+1 : end])
	if err != nil {
		return nil, err
	}
	tails := []string{""}
	if end+1 < len(word) {
		if tails, err = expandWord(word[end+1:]); err != nil {
			return nil, err
		}
	}
	if len(heads)*len(tails) > MaxHosts {
		return nil, fmt.Errorf("more than %d names", MaxHosts)
	}
	out := make([]string, 0, len(heads)*len(tails))
	for _, h := range heads {
		for _, t := range tails {
			out = append(out, word[:open]+h+t)
		}
	}
	return out, nil
}

func expandRanges(s string) ([]string, error) {
	var out []string
	for part := range strings.SplitSeq(s, ",") {
		lo, hi, isRange := strings.Cut(part, "-")
		if !isRange {
			hi = lo
		}
		a, errA := strconv.ParseUint(lo, 10, 31)
		b, errB := strconv.ParseUint(hi, 10, 31)
		if errA != nil || errB != nil {
			return nil, fmt.Errorf("range %q is not a number or number-number", part)
		}
		if a > b {
			return nil, fmt.Errorf("range %q runs backwards", part)
		}
		if b-a >= MaxHosts || len(out) >= MaxHosts {
			return nil, fmt.Errorf("more than %d names", MaxHosts)
		}
		width := 0
		if lo[0] == '0' && len(lo) > 1 {
			width = len(lo)
		}
		for n := a; n <= b; n++ {
			out = append(out, fmt.Sprintf("%0*d", width, n))
		}
	}
	return out, nil
}

// Compress writes names as a host list with ranges, sorted and without
// doubles: a-1 a-2 a-3 b gives "a-[1-3],b". Only a trailing number without
// padding is folded, which is the form of all names openpcs makes.
func Compress(names []string) string {
	byPrefix := map[string][]int{}
	var words []string
	for _, name := range names {
		digits := len(name)
		for digits > 0 && name[digits-1] >= '0' && name[digits-1] <= '9' {
			digits--
		}
		suffix := name[digits:]
		n, err := strconv.Atoi(suffix)
		if err != nil || digits == 0 || n > 1<<30 || (len(suffix) > 1 && suffix[0] == '0') {
			words = append(words, name)
			continue
		}
		byPrefix[name[:digits]] = append(byPrefix[name[:digits]], n)
	}
	for prefix, ns := range byPrefix {
		slices.Sort(ns)
		ns = slices.Compact(ns)
		var ranges []string
		for i := 0; i < len(ns); {
			j := i
			for j+1 < len(ns) && ns[j+1] == ns[j]+1 {
				j++
			}
			if i == j {
				ranges = append(ranges, strconv.Itoa(ns[i]))
			} else {
				ranges = append(ranges, strconv.Itoa(ns[i])+"-"+strconv.Itoa(ns[j]))
			}
			i = j + 1
		}
		word := prefix + strings.Join(ranges, ",")
		if len(ns) > 1 {
			word = prefix + "[" + strings.Join(ranges, ",") + "]"
		}
		words = append(words, word)
	}
	slices.SortFunc(words, cmp.Compare[string])
	return strings.Join(slices.Compact(words), ",")
}
