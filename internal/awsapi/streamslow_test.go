package awsapi_test

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/openpcs/openpcs/internal/awsapi"
)

// TestStreamsHaveTime: a body and an answer may take as long as they go on, and
// no longer.
func TestStreamsHaveTime(t *testing.T) {
	const length = 30
	// open sends the head of a request with a body of that length to a service.
	open := func(t *testing.T, serve func(w http.ResponseWriter, r *awsapi.Stream)) net.Conn {
		t.Helper()
		c := dial(t, awsapi.NewServer(awsapi.Options{
			Keys: oneKey(aKey), Logger: quiet(), Services: []awsapi.Service{{Name: "s3", Protocol: awsapi.RestXML, Stream: serve}},
		}))
		req := putObject(t, aKey, time.Now(), "UNSIGNED-PAYLOAD", strings.Repeat("x", length), nil)
		raw := text(t, req, "HTTP/1.1")
		if _, err := io.WriteString(c, raw[:len(raw)-length]); err != nil {
			t.Fatal(err)
		}
		return c
	}
	body := func(c net.Conn, n int, every time.Duration) {
		for range n {
			_, _ = c.Write([]byte("x")) // a server that is gone is what the test is about
			time.Sleep(every)           // of the bubble's clock
		}
	}
	t.Run("a_slow_body_and_a_slow_answer", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			c := open(t, func(w http.ResponseWriter, r *awsapi.Stream) {
				got, err := io.ReadAll(r.HTTP.Body)
				_, _ = r.HTTP.Body.Read(make([]byte, 1)) // as transports do
				select {
				case <-r.HTTP.Context().Done():
					err = r.HTTP.Context().Err()
				case <-time.After(10 * time.Minute):
				}
				for range 10 {
					fmt.Fprintf(w, "%d bytes, %v;", len(got), err)
					_ = http.NewResponseController(w).Flush()
					time.Sleep(50 * time.Second) // of the bubble's clock
				}
			})
			go body(c, length, 20*time.Second)
			resp, err := http.ReadResponse(bufio.NewReader(c), nil)
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = resp.Body.Close() }()
			if got, err := io.ReadAll(resp.Body); string(got) != strings.Repeat("30 bytes, <nil>;", 10) || err != nil {
				t.Errorf("got %q, %v", got, err)
			}
		})
	})
	t.Run("a_slow_answer_without_a_body", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			c := dial(t, awsapi.NewServer(awsapi.Options{
				Keys: oneKey(aKey), Logger: quiet(), Services: []awsapi.Service{{Name: "s3", Protocol: awsapi.RestXML, Stream: func(w http.ResponseWriter, r *awsapi.Stream) {
					_, _ = r.HTTP.Body.Read(nil)
					select {
					case <-r.HTTP.Context().Done():
						w.WriteHeader(http.StatusTeapot)
					case <-time.After(10 * time.Minute):
					}
				}}},
			}))
			if _, err := io.WriteString(c, text(t, putObject(t, aKey, time.Now(), "UNSIGNED-PAYLOAD", "", nil), "HTTP/1.1")); err != nil {
				t.Fatal(err)
			}
			resp, err := http.ReadResponse(bufio.NewReader(c), nil)
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = resp.Body.Close() }()
			if resp.StatusCode != http.StatusOK {
				t.Errorf("got %s", resp.Status)
			}
		})
	})
	t.Run("a_body_that_stops", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			began := time.Now()
			failed := make(chan error, 1)
			c := open(t, func(_ http.ResponseWriter, r *awsapi.Stream) {
				_, err := io.ReadAll(r.HTTP.Body)
				failed <- err
			})
			body(c, 3, time.Second)
			go func() { _, _ = io.Copy(io.Discard, c) }()
			if err := <-failed; !errors.Is(err, os.ErrDeadlineExceeded) || time.Since(began) > time.Minute {
				t.Errorf("%v after %s", err, time.Since(began))
			}
		})
	})
	t.Run("an_answer_that_nobody_reads", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			began := time.Now()
			failed := make(chan error, 1)
			c := open(t, func(w http.ResponseWriter, r *awsapi.Stream) {
				_, err := io.ReadAll(r.HTTP.Body)
				for err == nil {
					_, err = w.Write(make([]byte, 64<<10))
				}
				failed <- err
			})
			body(c, length, 0)
			if err := <-failed; !errors.Is(err, os.ErrDeadlineExceeded) || time.Since(began) > 2*time.Minute {
				t.Errorf("%v after %s", err, time.Since(began))
			}
		})
	})
}
