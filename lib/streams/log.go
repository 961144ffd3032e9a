// SPDX-License-Identifier: Apache-2.0

package streams

import (
	"encoding/base64"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/gorilla/websocket"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

const (
	binaryLog = "binary.k8s.io"
	base64Log = "base64.binary.k8s.io" // for browsers
)

// LogProtocol chooses the websocket protocol of a log: the first supported one, none if the client names none.
func LogProtocol(r *http.Request) (string, error) {
	offered := websocket.Subprotocols(r)
	for _, p := range offered {
		if p == binaryLog || p == base64Log {
			return p, nil
		}
	}
	if len(offered) == 0 {
		return "", nil
	}
	return "", apierrors.NewBadRequest(fmt.Sprintf("requested protocol(s) are not supported: %v; supports %v", offered,
		[]string{binaryLog, base64Log}))
}

// Log sends log as websocket messages and closes it. It returns when log or the websocket has ended.
func Log(w http.ResponseWriter, r *http.Request, protocol string, log io.ReadCloser) {
	defer func() { _ = log.Close() }() // nothing more is read
	ws, err := accept(w, r, protocol)
	if err != nil {
		return // the error response is written
	}
	defer func() { _ = ws.Close() }() // the client may have closed it
	gone := make(chan struct{})
	go func() { // ends with the websocket
		defer close(gone)
		defer func() { _ = log.Close() }() // the client is gone
		for {
			if _, _, err := ws.NextReader(); err != nil {
				return // messages of the client are ignored
			}
		}
	}()
	var out io.Writer = binaryWriter{ws}
	if protocol == base64Log {
		out = base64Writer{ws}
	}
	if _, err := out.Write(nil); err == nil { // sent at once, even if nothing is logged for long
		_, _ = io.Copy(out, log) // either side may end it
	}
	end := time.Now().Add(closeTimeout)
	_ = ws.WriteControl(websocket.CloseMessage, websocket.FormatCloseMessage(websocket.CloseNormalClosure, ""), end)
	_ = ws.SetReadDeadline(end)
	<-gone
}

// base64Writer sends each write as one text message in base64.
type base64Writer struct{ ws *websocket.Conn }

func (l base64Writer) Write(b []byte) (int, error) {
	if err := l.ws.WriteMessage(websocket.TextMessage, []byte(base64.StdEncoding.EncodeToString(b))); err != nil {
		return 0, err
	}
	return len(b), nil
}
