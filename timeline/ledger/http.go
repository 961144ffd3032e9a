// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"keelson/api/decisions"
	"keelson/event"
)

// Limits for one request of a remote agent.
const (
	maxBody  = 8 << 20
	maxLine  = 256 << 10
	maxMarks = 20000
)

// Handler serves POST /keelson/v1/marks: lines of marks from a remote agent. The caller authorizes requests before;
// sender returns who sends marks, with the permitted steps and objects.
func (t *Ledger) Handler(sender func(*http.Request) Sender) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /keelson/v1/marks", func(w http.ResponseWriter, r *http.Request) {
		t.serveMarks(w, r, sender(r))
	})
	return mux
}

func refuse(w http.ResponseWriter, code int, reason metav1.StatusReason, message string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(metav1.Status{
		TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"},
		Status:   metav1.StatusFailure,
		Message:  message,
		Reason:   reason,
		Code:     int32(code), // an HTTP status code
	})
}

func (t *Ledger) serveMarks(w http.ResponseWriter, r *http.Request, sender Sender) {
	marks, err := readMarks(http.MaxBytesReader(w, r.Body, maxBody))
	var tooLarge *http.MaxBytesError
	switch {
	case errors.As(err, &tooLarge):
		refuse(w, http.StatusRequestEntityTooLarge, metav1.StatusReasonRequestEntityTooLarge, err.Error())
		return
	case err != nil:
		refuse(w, http.StatusBadRequest, metav1.StatusReasonBadRequest, err.Error())
		return
	}
	now := time.Now()
	if !t.rates.take(sender.Name, len(marks), now) {
		w.Header().Set("Retry-After", "5")
		refuse(w, http.StatusTooManyRequests, metav1.StatusReasonTooManyRequests,
			fmt.Sprintf("%s sends more than %d marks a second", sender.Name, marksPerSecond))
		return
	}
	t.take(&sender, marks, now)
	w.WriteHeader(http.StatusNoContent)
}

// take stores the marks that the sender may send and ignores the others: a deleted pod, for example, is no error of the
// sender.
func (t *Ledger) take(sender *Sender, marks []received, now time.Time) {
	var bound map[string]Pod
	if sender.Node != "" {
		bound = sender.Bound()
	}
	var wrong error
	refused := 0
	for _, m := range marks {
		if err := t.permit(sender, bound, &m.Event, m.size, now); err != nil {
			wrong = err
			refused = refused + 1
			continue
		}
		m.ReportedBy = sender.Node
		t.Listen(m.Event)
	}
	if refused > 0 {
		t.log.Info("marks were left out", "sender", sender.Name, "marks", refused, "last", wrong)
	}
}

// received is a mark with the size of its encoding.
type received struct {
	event.Event
	size int
}

// Details are the types of details that package event does not know.
var Details = map[event.Step]func() any{
	event.StepDecision: func() any { return new(decisions.Attempt) },
}

// readMarks parses lines of marks. An error names the line, and nothing is returned then.
func readMarks(body io.Reader) ([]received, error) {
	var marks []received
	lines := bufio.NewScanner(body)
	lines.Buffer(make([]byte, 0, 64<<10), maxLine)
	for n := 1; lines.Scan(); n++ {
		line := bytes.TrimSpace(lines.Bytes())
		if len(line) == 0 {
			continue
		}
		if len(marks) == maxMarks {
			return nil, fmt.Errorf("line %d: more than %d marks at once", n, maxMarks)
		}
		m, err := event.Decode(line, Details)
		if err != nil {
			return nil, fmt.Errorf("line %d: %w", n, err)
		}
		if err := plausible(m); err != nil {
			return nil, fmt.Errorf("line %d: %w", n, err)
		}
		marks = append(marks, received{m, len(line)})
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("read marks: %w", err)
	}
	return marks, nil
}

// plausible rejects marks that no agent sends.
func plausible(m event.Event) error {
	const maxName = 512
	switch {
	case m.At.IsZero():
		return errors.New("mark without a time")
	case m.Took < 0:
		return errors.New("mark that took less than nothing")
	case len(m.Subject.Name) > maxName || len(m.Subject.Namespace) > maxName || len(m.Subject.UID) > maxName ||
		len(m.Component) > maxName:
		return fmt.Errorf("name longer than %d bytes", maxName)
	}
	return nil
}
