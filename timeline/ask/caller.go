// SPDX-License-Identifier: Apache-2.0

package ask

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
	"syscall"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"keelson/timeline/ledger"
	"keelson/timeline/story"
)

// Caller reads from an API server with the rights of one user.
type Caller struct {
	Namespace string
	// Get opens the answer to a GET request. An error has the server's message, as a StatusError where the server sent
	// one; ErrForeign means that the server is not Keelson's.
	Get func(ctx context.Context, path string) (io.ReadCloser, error)
}

// ErrForeign means that the API server is another one, which has no record of steps and decisions.
var ErrForeign = errors.New("the API server is not Keelson's: it has no record of what scheduler and nodes did " +
	"(`kubectl describe` shows the events)")

// ErrNoObject means that the object does not exist.
var ErrNoObject = errors.New("does not exist")

// read gets an object from the API server.
func (c *Caller) read(ctx context.Context, path string, into any) error {
	body, err := c.Get(ctx, path)
	if err != nil {
		return err
	}
	defer func() { _ = body.Close() }()
	if err := json.NewDecoder(body).Decode(into); err != nil {
		return fmt.Errorf("read the answer: %w", err)
	}
	if list, ok := into.(metav1.ListInterface); ok && list.GetContinue() != "" && !strings.Contains(path, "limit=") {
		return fmt.Errorf("%w: %s has more than %d objects", ErrTooMuch, path, maxObjects)
	}
	return nil
}

// ErrNoPage is a 404 without a Status.
var ErrNoPage = errors.New("the cluster answered 404 Not Found")

// Get opens the answer to a GET request of a path. An error has the server's message.
func Get(ctx context.Context, hc *http.Client, host, path string) (io.ReadCloser, error) {
	return send(ctx, hc, http.MethodGet, strings.TrimSuffix(host, "/")+path, http.NoBody)
}

// Post is Get for a question with a body.
func Post(ctx context.Context, hc *http.Client, host, path string, question any) (io.ReadCloser, error) {
	body, err := json.Marshal(question)
	if err != nil {
		return nil, err
	}
	return send(ctx, hc, http.MethodPost, strings.TrimSuffix(host, "/")+path, bytes.NewReader(body))
}

func send(ctx context.Context, hc *http.Client, method, url string, body io.Reader) (io.ReadCloser, error) {
	req, err := http.NewRequestWithContext(ctx, method, url, body)
	if err != nil {
		return nil, err
	}
	resp, err := hc.Do(req)
	if errors.Is(err, syscall.ECONNREFUSED) {
		return nil, fmt.Errorf("ask the cluster: %w: it does not run there; `keelson up` starts it", err)
	}
	if err != nil {
		return nil, fmt.Errorf("ask the cluster: %w", err)
	}
	if resp.StatusCode == http.StatusOK {
		return resp.Body, nil
	}
	defer func() { _ = resp.Body.Close() }()
	b, _ := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	var s metav1.Status
	if json.Unmarshal(b, &s) == nil && s.Message != "" {
		return nil, &apierrors.StatusError{ErrStatus: s}
	}
	if resp.StatusCode == http.StatusNotFound {
		return nil, fmt.Errorf("%w: %s", ErrNoPage, bytes.TrimSpace(b))
	}
	return nil, fmt.Errorf("the cluster answered %s: %s", resp.Status, bytes.TrimSpace(b))
}

// Unknown explains why the server has no marks of a pod. It returns cause unless that is a 404.
func (c *Caller) Unknown(ctx context.Context, name string, cause error) error {
	if !apierrors.IsNotFound(cause) {
		return cause
	}
	body, err := c.Get(ctx, "/api/v1/namespaces/"+url.PathEscape(c.Namespace)+"/pods/"+url.PathEscape(name))
	switch {
	case apierrors.IsNotFound(err):
		return fmt.Errorf("pod %s/%s %w%s", c.Namespace, name, ErrNoObject, c.namesakes(ctx, name))
	case err != nil:
		return cause
	}
	defer func() { _ = body.Close() }()
	var pod metav1.PartialObjectMetadata
	if err := json.NewDecoder(body).Decode(&pod); err != nil {
		return cause
	}
	return fmt.Errorf("the steps of pod %s/%s are not remembered: it was made at %s, before this server started or "+
		"more than %d pods ago",
		c.Namespace, name, pod.CreationTimestamp.Local().Format("15:04:05 on 2 January"), ledger.DefaultLimit)
}

// namesakes asks whether one of the owners with this name was meant; empty: there is none.
func (c *Caller) namesakes(ctx context.Context, name string) string {
	var found []string
	for _, o := range Owners {
		var meta metav1.PartialObjectMetadata
		path := o.Path + "/namespaces/" + url.PathEscape(c.Namespace) + "/" + o.Resource + "/" + url.PathEscape(name)
		if c.read(ctx, path, &meta) == nil {
			found = append(found, o.Words[0]+"/"+name)
		}
	}
	if len(found) == 0 {
		return ""
	}
	return ": did you mean " + strings.Join(found, " or ") + "?"
}

// Dated sets when the pod of a partial story was created, if the API has the pod.
func (c *Caller) Dated(ctx context.Context, s *story.Story) {
	if !s.Partial {
		return
	}
	var pod metav1.PartialObjectMetadata
	err := c.read(ctx, "/api/v1/namespaces/"+url.PathEscape(c.Namespace)+"/pods/"+url.PathEscape(s.Name), &pod)
	if err == nil && (s.UID == "" || string(pod.UID) == s.UID) {
		s.Created = pod.CreationTimestamp.Time
	}
}
