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

// Limits for the answers of an extender.
const (
	maxHeader          = 64 << 10
	extraResponseBytes = 1 << 20 // an answer may have twice the bytes of its request, plus this
	maxReason          = 256     // bytes of one reason
	maxReasons         = 16      // different ones in an answer
	cooldownFactor     = 4
)

// cooldown is a circuit breaker. After a call without an answer, the extender is not called for cooldownFactor times
// the duration of that call. So an extender that hangs takes at most a fifth of the time.
type cooldown struct {
	mu    sync.Mutex
	until time.Time
	why   string
}

func (r *cooldown) check() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if time.Now().Before(r.until) {
		return fmt.Errorf("%s; it is not called again before %s", r.why, r.until.Format(time.TimeOnly))
	}
	return nil
}

func (r *cooldown) start(took time.Duration, why error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.until = time.Now().Add(cooldownFactor * took)
	r.why = why.Error()
}

// call sends a request with the extender's httpTimeout and decodes the answer.
func (e *Extender) call(ctx context.Context, verb string, args, result any) error {
	if err := e.cooldown.check(); err != nil {
		return err
	}
	request, err := json.Marshal(args)
	if err != nil {
		return fmt.Errorf("%s: encode: %w", verb, err)
	}
	begin := time.Now()
	text, err := e.send(ctx, verb, request)
	if err != nil {
		var status *statusError
		if err = fmt.Errorf("%s: %w", verb, err); !errors.As(err, &status) && ctx.Err() == nil {
			e.cooldown.start(time.Since(begin), err)
		}
		return err
	}
	if err := json.Unmarshal(text, result); err != nil {
		return fmt.Errorf("%s: cannot decode the answer: %s", verb, oneShortLine(err.Error()))
	}
	return nil
}

// statusError is an error status or a too long answer. It starts no cooldown.
type statusError struct{ text string }

func (e *statusError) Error() string { return e.text }

// send posts the request and returns the body of the answer.
func (e *Extender) send(ctx context.Context, verb string, request []byte) ([]byte, error) {
	limit := e.cfg.HTTPTimeout.Duration
	within, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	reword := func(err error) error {
		if ctx.Err() == nil && errors.Is(err, context.DeadlineExceeded) {
			return fmt.Errorf("no answer within %v", limit)
		}
		if about, ok := errors.AsType[*url.Error](err); ok {
			return about.Err
		}
		return err
	}
	rq, err := http.NewRequestWithContext(within, http.MethodPost, strings.TrimRight(e.cfg.URLPrefix, "/")+"/"+verb,
		bytes.NewReader(request))
	if err != nil {
		return nil, reword(err)
	}
	rq.Header.Set("Content-Type", "application/json")
	rs, err := e.client.Do(rq)
	if err != nil {
		return nil, reword(err)
	}
	defer func() { _ = rs.Body.Close() }() // nothing was written
	if rs.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(io.LimitReader(rs.Body, maxReason)) // the text is optional
		return nil, &statusError{
			strings.TrimSuffix(fmt.Sprintf("answered %d %s: %s", rs.StatusCode, http.StatusText(rs.StatusCode),
				oneShortLine(string(text))), ": "),
		}
	}
	most := extraResponseBytes + 2*len(request)
	text, err := io.ReadAll(io.LimitReader(rs.Body, int64(most)+1))
	if err != nil {
		return nil, reword(err)
	}
	if len(text) > most {
		return nil, &statusError{fmt.Sprintf("the answer is longer than %d bytes", most)}
	}
	return text, nil
}

// oneShortLine makes the text of an extender printable and short.
func oneShortLine(text string) string {
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
