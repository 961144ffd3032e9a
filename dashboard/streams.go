// SPDX-License-Identifier: Apache-2.0

package dashboard

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/gorilla/websocket"
)

// streamsProtocol is the websocket on which a page has all that goes on: watches, logs, stories. A browser opens six
// connections to an origin, for all its tabs; a websocket is none of them.
//
// The page sends {"id": 1, "get": "/api/v1/pods?watch=true"} and, when it has seen enough, {"id": 1, "stop": true}. It
// gets text messages, "1 l..." for a line of the answer with the id 1:
//
//	o CODE   the API server has answered, with this code
//	p TEXT   a part of a line, which goes on with the next message
//	l TEXT   the rest of a line, or all of it
//	e TEXT   the end: empty, or why
const streamsProtocol = "keelson.streams.v1"

// Limits of streams.
const (
	maxStreams  = 32      // of one socket
	maxQuestion = 8 << 10 // bytes
	linePart    = 64 << 10
	maxEnd      = 4 << 10 // bytes of an answer that is an error
	slowTime    = 30 * time.Second
	pingTime    = 20 * time.Second
	silentTime  = time.Minute
)

// question is a message of the page.
type question struct {
	ID     int64  `json:"id"`
	Get    string `json:"get"`
	Accept string `json:"accept"`
	Stop   bool   `json:"stop"`
}

// socket is a page's connection.
type socket struct {
	server *upstream
	conn   *websocket.Conn
	writes sync.Mutex

	running map[int64]context.CancelFunc // of the reading goroutine alone
	ended   chan int64
	streams sync.WaitGroup
}

// streams serves a page's socket until either side ends it.
func (d *Dashboard) streams(w http.ResponseWriter, r *http.Request) {
	upgrader := websocket.Upgrader{
		Subprotocols:     []string{streamsProtocol},
		HandshakeTimeout: headerTime,
		ReadBufferSize:   maxQuestion,
		WriteBufferSize:  linePart,
		CheckOrigin:      func(*http.Request) bool { return true }, // guarded has
		Error: func(w http.ResponseWriter, _ *http.Request, code int, err error) {
			refuse(w, code, err.Error())
		},
	}
	conn, err := upgrader.Upgrade(w, r, nil)
	if err != nil { // it has answered
		return
	}
	ctx, cancel := context.WithCancel(r.Context())
	s := &socket{
		server:  d.server,
		conn:    conn,
		running: map[int64]context.CancelFunc{},
		ended:   make(chan int64, maxStreams),
	}
	defer s.streams.Wait()
	defer func() { _ = conn.Close() }()
	defer cancel()
	s.streams.Go(func() { s.ping(ctx) })
	s.read(ctx)
}

// ping finds out whether the page is still there. It closes the connection when the dashboard ends.
func (s *socket) ping(ctx context.Context) {
	ticker := time.NewTicker(pingTime)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			_ = s.conn.Close()
			return
		case <-ticker.C:
			_ = s.conn.WriteControl(websocket.PingMessage, nil, time.Now().Add(headerTime))
		}
	}
}

// read starts and stops streams as the page asks.
func (s *socket) read(ctx context.Context) {
	s.conn.SetReadLimit(maxQuestion)
	alive := func(string) error { return s.conn.SetReadDeadline(time.Now().Add(silentTime)) }
	s.conn.SetPongHandler(alive)
	for alive("") == nil {
		kind, message, err := s.conn.ReadMessage()
		if err != nil {
			return
		}
		for forget := true; forget; {
			select {
			case id := <-s.ended:
				delete(s.running, id)
			default:
				forget = false
			}
		}
		var q question
		if kind != websocket.TextMessage || json.Unmarshal(message, &q) != nil || s.take(ctx, &q) != nil {
			return // a page of ours sends nothing else
		}
	}
}

// take does what a message asks for; an error ends the connection.
func (s *socket) take(ctx context.Context, q *question) error {
	stop := s.running[q.ID]
	if q.Stop {
		if stop != nil {
			stop()
		}
		return nil
	}
	to, query, err := streamOf(q.Get)
	switch {
	case err != nil:
		return s.send(q.ID, 'e', err.Error())
	case stop != nil || len(s.running) == maxStreams:
		return s.send(q.ID, 'e', fmt.Sprintf("a page has at most %d streams open", maxStreams))
	}
	ctx, cancel := context.WithCancel(ctx)
	s.running[q.ID] = cancel
	s.streams.Go(func() {
		defer cancel()
		reason := s.follow(ctx, q, to, query)
		s.ended <- q.ID // there is room for all
		if s.send(q.ID, 'e', reason) != nil {
			_ = s.conn.Close()
		}
	})
	return nil
}

// streamOf is where a stream comes from.
func streamOf(get string) (to *route, query string, err error) {
	path, query, _ := strings.Cut(get, "?")
	to, err = routeOf(path)
	if err == nil && to.opens() {
		err = errNotOurs
	}
	if err == nil && strings.ContainsFunc(query, func(r rune) bool { return r <= ' ' || r == '#' || r > '~' }) {
		err = errPath
	}
	return to, query, err
}

// follow passes an answer of the API server on, line by line, and returns why it ended.
func (s *socket) follow(ctx context.Context, q *question, to *route, query string) string {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, s.server.at(to, query).String(), http.NoBody)
	if err != nil {
		return errPath.Error()
	}
	request.Header = http.Header{}
	if q.Accept != "" {
		request.Header.Set("Accept", q.Accept)
	}
	resp, err := s.server.usual.RoundTrip(request)
	if err != nil {
		return fmt.Sprintf("the API server does not answer: %v", err)
	}
	defer func() { _ = resp.Body.Close() }()
	if s.send(q.ID, 'o', strconv.Itoa(resp.StatusCode)) != nil {
		return ""
	}
	if resp.StatusCode != http.StatusOK {
		return reasonOf(resp.Body)
	}
	if err := s.lines(q.ID, resp.Body); err != nil && ctx.Err() == nil {
		return "the connection to the API server ended: " + err.Error()
	}
	return ""
}

// reasonOf is the message of a Status, or what else the answer says.
func reasonOf(body io.Reader) string {
	text, _ := io.ReadAll(io.LimitReader(body, maxEnd)) // what came is shown
	var status struct {
		Message string `json:"message"`
	}
	if json.Unmarshal(text, &status) == nil && status.Message != "" {
		return status.Message
	}
	return string(text)
}

// lines sends the lines of an answer until it ends.
func (s *socket) lines(id int64, from io.Reader) error {
	in := bufio.NewReaderSize(from, linePart)
	var rest []byte // the beginning of a character, which the next part completes
	for {
		part, err := in.ReadSlice('\n')
		whole := err == nil
		if err != nil && !errors.Is(err, bufio.ErrBufferFull) && !errors.Is(err, io.EOF) {
			return err
		}
		part = append(rest, part...)
		rest = nil
		kind := byte('l')
		if whole {
			part = part[:len(part)-1]
		} else if errors.Is(err, bufio.ErrBufferFull) {
			kind = 'p'
			n := wholeRunes(part)
			rest = append(rest, part[n:]...)
			part = part[:n]
		}
		if whole || len(part) > 0 {
			if s.send(id, kind, string(part)) != nil {
				return nil //nolint:nilerr // the page is gone
			}
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
	}
}

// wholeRunes is the length of b without a character at its end that is not complete yet.
func wholeRunes(b []byte) int {
	for n := 1; n < utf8.UTFMax && n <= len(b); n++ {
		if last := b[len(b)-n:]; utf8.RuneStart(last[0]) {
			if utf8.FullRune(last) {
				return len(b)
			}
			return len(b) - n
		}
	}
	return len(b)
}

// send sends a message. A page that reads too slowly loses its connection.
func (s *socket) send(id int64, kind byte, text string) error {
	message := strconv.FormatInt(id, 10) + " " + string(kind) + strings.ToValidUTF8(text, "\uFFFD")
	s.writes.Lock()
	defer s.writes.Unlock()
	if err := s.conn.SetWriteDeadline(time.Now().Add(slowTime)); err != nil {
		return err
	}
	return s.conn.WriteMessage(websocket.TextMessage, []byte(message))
}
