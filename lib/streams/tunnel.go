// SPDX-License-Identifier: Apache-2.0

package streams

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/gorilla/websocket"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	constants "k8s.io/apimachinery/pkg/util/portforward"
	"k8s.io/streaming/pkg/httpstream"
	"k8s.io/streaming/pkg/httpstream/spdy"
)

// Tunnel serves a port-forward with SPDY inside a websocket: the kubelet at target gets the same bytes. An error means
// that the kubelet rejected the connection and no response was written. It returns nil when both connections are
// closed.
func Tunnel(w http.ResponseWriter, r *http.Request, target *url.URL, via http.RoundTripper) error {
	kubelet, protocol, err := dialSPDY(r, target, via)
	if err != nil {
		return err
	}
	defer func() { _ = kubelet.Close() }() // it may be closed already
	ws, err := accept(w, r, constants.WebsocketsSPDYTunnelingPrefix+protocol)
	if err != nil {
		return nil
	}
	defer func() { _ = ws.Close() }() // the client may have closed it
	var down sync.WaitGroup
	down.Go(func() {
		_, _ = io.Copy(binaryWriter{ws}, kubelet) // either side may end it
		end := time.Now().Add(closeTimeout)
		_ = ws.WriteControl(websocket.CloseMessage, websocket.FormatCloseMessage(websocket.CloseNormalClosure, ""), end)
		_ = ws.SetReadDeadline(end)
	})
	for {
		_, m, err := ws.NextReader()
		if err != nil {
			break
		}
		if _, err := io.Copy(kubelet, m); err != nil {
			break
		}
	}
	_ = kubelet.Close()
	down.Wait()
	return nil
}

// maxErrorText limits the kubelet's error text in the response.
const maxErrorText = 2000

// dialSPDY opens an SPDY connection to the kubelet with one of the client's protocols, and returns which.
func dialSPDY(r *http.Request, target *url.URL, via http.RoundTripper) (io.ReadWriteCloser, string, error) {
	req, err := http.NewRequestWithContext(r.Context(), http.MethodPost, target.String(), http.NoBody)
	if err != nil {
		return nil, "", err
	}
	req.Header.Set(httpstream.HeaderConnection, httpstream.HeaderUpgrade)
	req.Header.Set(httpstream.HeaderUpgrade, spdy.HeaderSpdy31)
	req.Header[httpstream.HeaderProtocolVersion] = tunnelledProtocols(r)
	resp, err := via.RoundTrip(req)
	if err != nil {
		return nil, "", err
	}
	conn, ok := resp.Body.(io.ReadWriteCloser)
	if resp.StatusCode == http.StatusSwitchingProtocols && ok &&
		strings.EqualFold(resp.Header.Get(httpstream.HeaderUpgrade), spdy.HeaderSpdy31) {
		return conn, resp.Header.Get(httpstream.HeaderProtocolVersion), nil
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode == http.StatusSwitchingProtocols {
		return nil, "", apierrors.NewInternalError(fmt.Errorf("unable to upgrade connection: the kubelet speaks %q",
			resp.Header.Get(httpstream.HeaderUpgrade)))
	}
	b, err := io.ReadAll(io.LimitReader(resp.Body, maxErrorText))
	if err != nil {
		return nil, "", err
	}
	text := "unable to upgrade connection: " + strings.TrimSpace(string(b))
	if resp.StatusCode == http.StatusBadRequest {
		return nil, "", apierrors.NewBadRequest(text)
	}
	return nil, "", apierrors.NewInternalError(errors.New(text))
}

// binaryWriter sends each write as one binary message. Only one goroutine may write.
type binaryWriter struct{ ws *websocket.Conn }

func (m binaryWriter) Write(b []byte) (int, error) {
	if err := m.ws.WriteMessage(websocket.BinaryMessage, b); err != nil {
		return 0, err
	}
	return len(b), nil
}
