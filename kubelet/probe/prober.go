// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"keelson/cri"
	"keelson/kubelet/translate"
)

// What a container answers to a probe is bounded: the body of an HTTP response, its headers, the message of a gRPC
// response, and what is reported of all these and of a command's output.
const (
	maxBody    = 10 << 10
	maxHeader  = 64 << 10
	maxMessage = 64 << 10
	maxOutput  = 10 << 10
	maxBrief   = 256
)

// Runner is the Prober for real containers.
type Runner struct {
	runtime runtimeapi.RuntimeServiceClient
	agent   string
	http    *http.Client
}

// NewRunner returns a prober that runs commands through rt and calls itself kube-probe/version.
func NewRunner(rt runtimeapi.RuntimeServiceClient, version string) *Runner {
	dialer := &net.Dialer{Control: quickClose}
	runner := &Runner{runtime: rt, agent: "kube-probe/" + version}
	runner.http = &http.Client{
		Transport: &http.Transport{
			DialContext:            dialer.DialContext,
			DisableKeepAlives:      true,
			DisableCompression:     true,
			Proxy:                  nil,
			MaxResponseHeaderBytes: maxHeader,
			TLSClientConfig:        &tls.Config{InsecureSkipVerify: true}, // probes do not verify, by their definition
		},
		CheckRedirect: func(req *http.Request, via []*http.Request) error {
			if req.URL.Hostname() != via[0].URL.Hostname() {
				return http.ErrUseLastResponse
			}
			if len(via) >= 10 {
				return errors.New("stopped after 10 redirects")
			}
			return nil
		},
	}
	return runner
}

// quickClose keeps probes' sockets from lingering in TIME_WAIT, where they would hold ports of the node.
func quickClose(_, _ string, c syscall.RawConn) error {
	return c.Control(func(fd uintptr) {
		// best effort
		_ = syscall.SetsockoptLinger(int(fd), syscall.SOL_SOCKET, syscall.SO_LINGER, &syscall.Linger{
			Onoff:  1,
			Linger: 1,
		})
	})
}

// Probe makes one attempt.
func (r *Runner) Probe(ctx context.Context, t Target) Outcome {
	o := r.attempt(ctx, t)
	o.Output = cut(o.Output, maxOutput)
	o.Brief = cut(o.Brief, maxBrief)
	return o
}

// cut shortens what a container may have written.
func cut(text string, most int) string {
	if len(text) > most {
		return strings.ToValidUTF8(text[:most], "")
	}
	return text
}

func (r *Runner) attempt(ctx context.Context, target Target) Outcome {
	switch p := target.Probe; {
	case p.Exec != nil:
		command, err := expanded(p.Exec.Command, target.Container)
		if err != nil {
			return Outcome{Err: err, Output: err.Error()}
		}
		return r.exec(ctx, target.ContainerID, command, time.Duration(max(p.TimeoutSeconds, 1))*time.Second)
	case p.HTTPGet != nil:
		return r.get(ctx, target.Container, target.PodIP, p.HTTPGet)
	case p.TCPSocket != nil:
		return r.tcp(ctx, target.Container, target.PodIP, p.TCPSocket)
	case p.GRPC != nil:
		return r.grpc(ctx, target.PodIP, p.GRPC)
	}
	return Outcome{Err: fmt.Errorf("missing probe handler for %s:%s", target.Pod.Name, target.Container.Name)}
}

// maxArgument is the longest argument that Linux takes, in bytes.
const maxArgument = 128 << 10

// expanded is the command with $(NAME) replaced by the container's variables that have a value of their own, as it is
// written there (API doc of ExecAction.command).
func expanded(command []string, container *corev1.Container) ([]string, error) {
	out := make([]string, len(command))
	for i, argument := range command {
		var err error
		out[i], err = translate.Expand(argument, maxArgument, func(name string) (string, bool) {
			for at := len(container.Env) - 1; at >= 0; at-- { // the last of one name counts
				if v := &container.Env[at]; v.Name == name && v.ValueFrom == nil {
					return v.Value, true
				}
			}
			return "", false
		})
		if err != nil {
			return nil, fmt.Errorf("argument %d of the probe's command: %w", i, err)
		}
	}
	return out, nil
}

func (r *Runner) exec(ctx context.Context, id string, cmd []string, timeout time.Duration) Outcome {
	out, code, err := cri.Output(context.WithoutCancel(ctx), r.runtime, &runtimeapi.ExecSyncRequest{
		ContainerId: id,
		Cmd:         cmd,
		Timeout:     int64(timeout / time.Second),
	}, maxOutput)
	if status.Code(err) == codes.DeadlineExceeded {
		return Outcome{
			Output: fmt.Sprintf("command timed out: %q timed out after %s", strings.Join(cmd, " "),
				timeout),
			Brief: "timed out",
		}
	}
	if err != nil {
		return Outcome{Err: err, Output: err.Error()}
	}
	return Outcome{OK: code == 0, Output: string(out), Brief: "exit " + strconv.Itoa(int(code))}
}

func (r *Runner) get(ctx context.Context, c *corev1.Container, ip string, h *corev1.HTTPGetAction) Outcome {
	if _, err := Port(h.Port, c); err != nil {
		return Outcome{Err: err, Output: err.Error()} // nothing was asked, so nothing failed
	}
	code, body, err := r.Do(ctx, c, ip, h)
	if err != nil {
		return Outcome{Output: err.Error(), Brief: brief(err), Refused: errors.Is(err, syscall.ECONNREFUSED)}
	}
	o := Outcome{OK: code >= 200 && code < 400, Output: body, Brief: strconv.Itoa(code)}
	switch {
	case o.OK && code >= 300:
		o.Warn = true
		o.Output = fmt.Sprintf("Probe terminated redirects, Response body: %v", body)
	case !o.OK:
		o.Output = fmt.Sprintf("HTTP probe failed with statuscode: %d", code)
	}
	return o
}

// Do sends the request of an httpGet action, for probes and lifecycle hooks, and returns the answer's code and the
// beginning of its body.
func (r *Runner) Do(
	ctx context.Context, c *corev1.Container, ip string, httpGetAction *corev1.HTTPGetAction,
) (code int, body string, err error) {
	port, err := Port(httpGetAction.Port, c)
	if err != nil {
		return 0, "", err
	}
	u, err := url.Parse(path(httpGetAction.Path))
	if err != nil {
		u = &url.URL{Path: httpGetAction.Path}
	}
	u.Scheme = cmp.Or(strings.ToLower(string(httpGetAction.Scheme)), "http")
	u.Host = net.JoinHostPort(cmp.Or(httpGetAction.Host, ip), strconv.Itoa(port))
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), nil)
	if err != nil {
		return 0, "", err
	}
	for _, hd := range httpGetAction.HTTPHeaders {
		req.Header.Add(hd.Name, hd.Value)
	}
	if _, ok := req.Header["User-Agent"]; !ok {
		req.Header.Set("User-Agent", r.agent)
	}
	if _, ok := req.Header["Accept"]; !ok {
		req.Header.Set("Accept", "*/*")
	} else if req.Header.Get("Accept") == "" {
		req.Header.Del("Accept")
	}
	if host := req.Header.Get("Host"); host != "" {
		req.Host = host
	}
	resp, err := r.http.Do(req)
	if err != nil {
		return 0, "", err
	}
	defer func() { _ = resp.Body.Close() }() // the body was read
	b, err := io.ReadAll(io.LimitReader(resp.Body, maxBody))
	if err != nil {
		return 0, "", err
	}
	return resp.StatusCode, string(b), nil
}

func (r *Runner) tcp(ctx context.Context, c *corev1.Container, ip string, a *corev1.TCPSocketAction) Outcome {
	port, err := Port(a.Port, c)
	if err != nil {
		return Outcome{Err: err, Output: err.Error()}
	}
	d := net.Dialer{Control: quickClose}
	conn, err := d.DialContext(ctx, "tcp", net.JoinHostPort(cmp.Or(a.Host, ip), strconv.Itoa(port)))
	if err != nil {
		return Outcome{Output: err.Error(), Brief: brief(err), Refused: errors.Is(err, syscall.ECONNREFUSED)}
	}
	_ = conn.Close() // it opened, which is all that was asked
	return Outcome{OK: true, Brief: "open"}
}

func (r *Runner) grpc(ctx context.Context, ip string, grpcAction *corev1.GRPCAction) Outcome {
	addr := net.JoinHostPort(ip, strconv.Itoa(int(grpcAction.Port)))
	d := net.Dialer{Control: quickClose}
	conn, err := grpc.NewClient("passthrough:///"+addr,
		grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithUserAgent(r.agent),
		grpc.WithMaxHeaderListSize(maxHeader), grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxMessage)),
		grpc.WithContextDialer(func(ctx context.Context, addr string) (net.Conn, error) {
			return d.DialContext(ctx, "tcp", addr)
		}))
	if err != nil {
		return Outcome{Output: err.Error(), Brief: brief(err)}
	}
	defer func() { _ = conn.Close() }() // nothing is buffered
	req := &healthpb.HealthCheckRequest{}
	if grpcAction.Service != nil {
		req.Service = *grpcAction.Service
	}
	resp, err := healthpb.NewHealthClient(conn).Check(metadata.NewOutgoingContext(ctx, metadata.MD{}), req,
		grpc.WaitForReady(false))
	switch status.Code(err) {
	case codes.OK:
	case codes.Unimplemented:
		return Outcome{
			Output: "error: this server does not implement the grpc health protocol (grpc.health.v1.Health): " +
				status.Convert(err).Message(),
			Brief: "unimplemented",
		}
	case codes.DeadlineExceeded:
		return Outcome{
			Output: fmt.Sprintf("timeout: health rpc did not complete within %v", timeoutOf(ctx)),
			Brief:  "timed out",
		}
	default:
		return Outcome{
			Output:  "error: health rpc probe failed: " + err.Error(),
			Brief:   brief(err),
			Refused: status.Code(err) == codes.Unavailable,
		}
	}
	if resp.GetStatus() != healthpb.HealthCheckResponse_SERVING {
		return Outcome{
			Output: fmt.Sprintf("service unhealthy (responded with %q)", resp.GetStatus()),
			Brief:  resp.GetStatus().String(),
		}
	}
	return Outcome{OK: true, Output: "service healthy", Brief: "SERVING"}
}

func timeoutOf(ctx context.Context) time.Duration {
	if d, ok := ctx.Deadline(); ok {
		return time.Until(d).Abs().Round(time.Second)
	}
	return 0
}

// brief is the end of an error's chain: "connection refused".
func brief(err error) string {
	s := err.Error()
	if i := strings.LastIndex(s, ": "); i >= 0 {
		s = s[i+2:]
	}
	return s
}

// Port is a port by number, or by the name of one of the container's ports.
func Port(p intstr.IntOrString, c *corev1.Container) (int, error) {
	n := p.IntValue()
	if p.Type == intstr.String {
		for _, cp := range c.Ports {
			if cp.Name == p.StrVal {
				return int(cp.ContainerPort), nil
			}
		}
		if _, err := strconv.Atoi(p.StrVal); err != nil {
			return 0, fmt.Errorf("couldn't find port: %v in container %s", p.StrVal, c.Name)
		}
	}
	if n <= 0 || n > 65535 {
		return 0, fmt.Errorf("invalid port number: %v", p.String())
	}
	return n, nil
}

func portText(p intstr.IntOrString) string { return p.String() }

func path(p string) string {
	if strings.HasPrefix(p, "/") {
		return p
	}
	return "/" + p
}

func itoa(n int) string { return strconv.Itoa(n) }

func join(words []string) string { return strings.Join(words, " ") }
