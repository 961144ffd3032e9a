// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// testSite answers as tutorials' servers do.
func testSite(t *testing.T) (addr string) {
	t.Helper()
	mux := http.NewServeMux()
	mux.HandleFunc("/echo", func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		_, _ = fmt.Fprintf(w, "%s %s %s %s %s", r.Method, r.URL.RawQuery, r.Header.Get("X-My"),
			r.Header.Get("Content-Type"), b)
	})
	mux.HandleFunc("/chunks", func(w http.ResponseWriter, _ *http.Request) {
		for i := range 3 {
			_, _ = fmt.Fprintf(w, "%d", i)
			w.(http.Flusher).Flush()
		}
	})
	mux.HandleFunc("/gone", func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, "/chunks", http.StatusFound)
	})
	mux.HandleFunc("/loop", func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, "/loop", http.StatusFound)
	})
	mux.HandleFunc("/slow", func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
	mux.HandleFunc("/none", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) })
	s := httptest.NewServer(mux)
	t.Cleanup(s.Close)
	return strings.TrimPrefix(s.URL, "http://")
}

// raw answers each connection with a text, whatever it asks.
func raw(t *testing.T, text string) (addr string) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	go func() { // ends when the listener is closed
		for {
			c, err := listener.Accept()
			if err != nil {
				return
			}
			_, _ = http.ReadRequest(bufio.NewReader(c))
			_, _ = io.WriteString(c, text)
			_ = c.Close()
		}
	}()
	return listener.Addr().String()
}

// closedPort is a loopback address that nothing listens on.
func closedPort(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	return l.Addr().String()
}

func TestCurl(t *testing.T) {
	site := testSite(t)
	for _, c := range []struct {
		args []string
		out  string
		code int
	}{
		{[]string{site + "/echo?a=b&c"}, "GET a=b&c   ", 0},
		{[]string{"http://" + site + "/chunks"}, "012", 0},
		{[]string{"-sS", "-H", "X-My: field", site + "/echo"}, "GET  field  ", 0},
		{[]string{"-d", "a=1", "-d", "b=2", site + "/echo"}, "POST   application/x-www-form-urlencoded a=1&b=2", 0},
		{
			[]string{"-X", "PUT", "-H", "content-type: application/json", "--data", "{}", site + "/echo"},
			"PUT   application/json {}", 0,
		},
		{[]string{"-XDELETE", site + "/echo"}, "DELETE    ", 0},
		{[]string{"-d", "@-", site + "/echo"}, "POST   application/x-www-form-urlencoded from stdin", 0},
		{[]string{"-s", "-o", "/dev/null", "-w", `%{http_code} %{size_download}\n`, site + "/chunks"}, "200 3\n", 0},
		{[]string{"-s", "-o", "/dev/null", "-w", "%{http_code}", site + "/nothing"}, "404", 0},
		{[]string{"-f", site + "/nothing"}, "", 22},
		{[]string{"-L", site + "/gone"}, "012", 0},
		{[]string{"-sLo", "/dev/null", "-w", "%{http_code}", site + "/loop"}, "302", 0},
		{[]string{site + "/none"}, "", 0},
		{[]string{"--max-time", "0.05", site + "/slow"}, "", 28},
		{[]string{"-w", "%{http_code}", "http://" + closedPort(t)}, "000", 7},
		{[]string{"http://nobody.invalid/"}, "", 6},
		{[]string{"https://127.0.0.1/"}, "", 1},
		{[]string{"ftp://x"}, "", 3},
		{[]string{"http://"}, "", 3},
		{[]string{"-Q", site}, "", 2},
		{nil, "", 2},
		{[]string{raw(t, "")}, "", 52},
		{[]string{raw(t, "nonsense\r\n\r\n")}, "", 56},
		{[]string{raw(t, "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nshort")}, "short", 56},
		{[]string{raw(t, "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.0 200 OK\r\n\r\nto the end")}, "to the end", 0},
		{
			[]string{"-i", raw(t, "HTTP/1.1 200 OK\r\nSet-Cookie: a\r\nSet-Cookie: b\r\n\r\nx")},
			"HTTP/1.1 200 OK\r\nSet-Cookie: a\r\nSet-Cookie: b\r\n\r\nx", 0,
		},
		{
			[]string{"-I", raw(t, "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n")},
			"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n", 0,
		},
	} {
		out, errOut, code := run(t, "from stdin", append([]string{"curl"}, c.args...)...)
		if out != c.out || code != c.code || (code != 0) != (errOut != "") {
			t.Errorf("%q: got %q, %q and %d, want %q and %d", c.args, out, errOut, code, c.out, c.code)
		}
	}
	if _, errOut, _ := run(t, "", "curl", "-s", "http://"+closedPort(t)); errOut != "" {
		t.Errorf("curl -s: got %q, want silence", errOut)
	}
	if _, errOut, code := run(t, "", "curl", "-v", site+"/none"); code != 0 || !strings.Contains(errOut,
		"> GET /none HTTP/1.1\r\n> Host: "+site+"\r\n") || !strings.Contains(errOut, "< HTTP/1.1 204 No Content\r\n") {
		t.Errorf("curl -v: got %q and %d", errOut, code)
	}
}

func TestWget(t *testing.T) {
	site := testSite(t)
	file := filepath.Join(t.TempDir(), "f")
	for _, c := range []struct {
		args []string
		out  string
		err  string
		code int
	}{
		{[]string{"-qO-", site + "/chunks"}, "012", "", 0},
		{[]string{"-q", "-O", "-", "-T", "1", site + "/chunks"}, "012", "", 0},
		{[]string{"--spider", "--timeout=1", site + "/chunks"}, "", "remote file exists\n", 0},
		{[]string{"--spider", site + "/nothing"}, "", "wget: server answered HTTP/1.1 404 Not Found\n", 1},
		{[]string{"-O" + file, site + "/chunks"}, "", "", 0},
		{
			[]string{
				"https://x/",
			}, "", "wget: https://x/: https is not supported: the program has no TLS; use http://\n", 1,
		},
		{[]string{"--nothing", site}, "", "wget: option --nothing is not known; usage: " + wgetSyntax.usage + "\n", 1},
		{nil, "", "wget: usage: " + wgetSyntax.usage + "\n", 1},
	} {
		out, errOut, code := run(t, "", append([]string{"wget"}, c.args...)...)
		if out != c.out || errOut != c.err || code != c.code {
			t.Errorf("%q: got %q, %q and %d, want %q, %q and %d", c.args, out, errOut, code, c.out, c.err, c.code)
		}
	}
	if b, err := os.ReadFile(file); err != nil || string(b) != "012" {
		t.Errorf("file: got %q, %v", b, err)
	}
}

func TestNetcat(t *testing.T) {
	site := testSite(t)
	host, port, _ := net.SplitHostPort(site)
	closedHost, closed, _ := net.SplitHostPort(closedPort(t))
	for _, c := range []struct {
		in   string
		args []string
		want string // in the output or the error
		code int
	}{
		{"GET /chunks HTTP/1.0\r\n\r\n", []string{host, port}, "200 OK", 0},
		{"GET /chunks HTTP/1.0\r\n\r\n", []string{"-w", "5", host, port}, "012", 0},
		{"", []string{"-z", host, port}, "", 0},
		{"", []string{"-zv", "-w1", host, port}, "open", 0},
		{"", []string{"-z", closedHost, closed}, "", 1},
		{"", []string{"-zv", closedHost, closed}, "connection refused", 1},
		{"", []string{host}, "usage: nc", 1},
		{"", []string{host, "70000"}, "usage: nc", 1},
		{"", []string{"-l"}, "usage: nc", 1},
		{"", []string{"-l", "-w", "0.01", "-p", "0", "127.0.0.1"}, "timeout", 1},
	} {
		out, errOut, code := run(t, c.in, append([]string{"nc"}, c.args...)...)
		if !strings.Contains(out+errOut, c.want) || code != c.code {
			t.Errorf("%q: got %q, %q and %d, want %q and %d", c.args, out, errOut, code, c.want, c.code)
		}
	}
}

// TestNetcatListens: the listener gives what it gets, and ends with the connection.
func TestNetcatListens(t *testing.T) {
	said, errs := io.Pipe()
	var out strings.Builder
	done := make(chan int)
	go func() { // ends with the connection
		done <- nc([]string{"nc", "-lv", "-p", "0", "127.0.0.1"}, stdio{strings.NewReader("answer"), &out, errs})
	}()
	line, err := bufio.NewReader(said).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	go func() { _, _ = io.Copy(io.Discard, said) }() // ends when the pipe is closed
	defer func() { _ = said.Close() }()
	got, errOut, code := run(t, "question", "nc", "127.0.0.1", line[strings.LastIndexByte(line, ':')+1:len(line)-1])
	if listened := <-done; got != "answer" || code != 0 || listened != 0 || out.String() != "question" {
		t.Errorf("client: %q, %s and %d; listener: %q and %d", got, errOut, code, out.String(), listened)
	}
}
