// SPDX-License-Identifier: Apache-2.0

package extender

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"
	"unicode"
	"unicode/utf8"
)

// Bounds of what an extender can make the scheduler read, keep and tell.
const (
	maxHeader    = 64 << 10
	answerSpare  = 1 << 20 // an answer may be twice as long as its question, and this
	maxReason    = 256     // bytes of one reason
	maxReasons   = 16      // different ones in an answer
	restsPerLost = 4
)

// resting keeps an extender that does not answer from taking more than a fifth of the time in which extenders are asked: for each second that it
// let the scheduler wait in vain it is left alone for four.
type resting struct {
	mu    sync.Mutex
	until time.Time
	why   string
}

func (r *resting) check() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if time.Now().Before(r.until) {
		return fmt.Errorf("%s; it is asked again from %s on", r.why, r.until.Format(time.TimeOnly))
	}
	return nil
}

func (r *resting) lost(took time.Duration, why error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.until, r.why = time.Now().Add(restsPerLost*took), why.Error()
}

// call asks the extender, within its time-out, and decodes its answer.
func (e *Extender) call(ctx context.Context, verb string, args, answer any) error {
	if err := e.resting.check(); err != nil {
		return err
	}
	question, err := json.Marshal(args)
	if err != nil {
		return fmt.Errorf("%s: encode: %w", verb, err)
	}
	begin := time.Now()
	text, err := e.send(ctx, verb, question)
	if err != nil {
		var status *statusError
		if err = fmt.Errorf("%s: %w", verb, err); !errors.As(err, &status) && ctx.Err() == nil {
			e.resting.lost(time.Since(begin), err)
		}
		return err
	}
	if err := json.Unmarshal(text, answer); err != nil {
		return fmt.Errorf("%s: its answer is not understood: %s", verb, cut(err.Error()))
	}
	return nil
}

// statusError is an answer that is none.
type statusError struct{ text string }

func (e *statusError) Error() string { return e.text }

// send posts the question and returns the answer's body.
func (e *Extender) send(ctx context.Context, verb string, question []byte) ([]byte, error) {
	limit := e.cfg.HTTPTimeout.Duration
	within, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	told := func(err error) error {
		if ctx.Err() == nil && errors.Is(err, context.DeadlineExceeded) {
			return fmt.Errorf("no answer within %v", limit)
		}
		if about, ok := errors.AsType[*url.Error](err); ok {
			return about.Err
		}
		return err
	}
	rq, err := http.NewRequestWithContext(within, http.MethodPost, strings.TrimRight(e.cfg.URLPrefix, "/")+"/"+verb, bytes.NewReader(question))
	if err != nil {
		return nil, told(err)
	}
	rq.Header.Set("Content-Type", "application/json")
	rs, err := e.client.Do(rq)
	if err != nil {
		return nil, told(err)
	}
	defer func() { _ = rs.Body.Close() }() // nothing was written
	if rs.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(io.LimitReader(rs.Body, maxReason)) // what it says is a help, no more
		return nil, &statusError{strings.TrimSuffix(fmt.Sprintf("answered %d %s: %s", rs.StatusCode, http.StatusText(rs.StatusCode), cut(string(text))), ": ")}
	}
	most := answerSpare + 2*len(question)
	text, err := io.ReadAll(io.LimitReader(rs.Body, int64(most)+1))
	if err != nil {
		return nil, told(err)
	}
	if len(text) > most {
		return nil, &statusError{fmt.Sprintf("its answer is longer than %d bytes", most)}
	}
	return text, nil
}

// cut makes one short line of foreign text.
func cut(text string) string {
	text = strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return ' '
	}, strings.ToValidUTF8(text, "?"))
	text = strings.TrimSpace(text)
	if len(text) <= maxReason {
		return text
	}
	end := maxReason - len("...")
	for !utf8.RuneStart(text[end]) {
		end--
	}
	return text[:end] + "..."
}
