// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"keelson/api/networking/reach"
	"keelson/timeline/ask"
	"keelson/timeline/packet"
)

type traceFlags struct {
	storyFlags
	from    string
	to      []string
	udp     bool
	timeout time.Duration
}

func traceCommand(std Stdio) *cobra.Command {
	var f traceFlags
	cmd := &cobra.Command{
		Use: "trace --from pod/NAME --to DESTINATION",
		Short: "Where packets of a pod to a Service, a name or an address go, hop by hop, and what becomes of one " +
			"real connection",
		Example: "  keelson trace --from pod/a --to svc/web:80\n" +
			"  keelson trace --from deploy/shop --to svc/web:80 --to svc/db:5432\n" +
			"  keelson trace -n shop --from pod/cart --to " +
			"svc/billing/api:https\n" +
			"  keelson trace --from pod/a --to web.default.svc.cluster.local:80\n  keelson trace --from pod/a --to " +
			"10.0.0.10:53 --udp",
		Args: endsAsFlags,
	}
	f.add(cmd)
	cmd.Flags().StringVar(&f.from, "from", "", "the pod that connects: pod/NAME or pod/NAMESPACE/NAME; "+
		"deploy/NAME and so on: one of its pods")
	cmd.Flags().StringArrayVar(&f.to, "to", nil,
		"where to, may be repeated: svc/NAME:PORT, svc/NAMESPACE/NAME:PORT, pod/NAME:PORT, node/NAME:NODEPORT, "+
			"a name or an address with a port; a Service's port may be named, and left out when it is the only one")
	_ = cmd.RegisterFlagCompletionFunc("from", ofFlag(completeNames(storyNames(storyTypes...))))
	_ = cmd.RegisterFlagCompletionFunc("to", ofFlag(completeNames(storyNames("svc", "pod", "node"))))
	cmd.Flags().BoolVar(&f.udp, "udp", false, "send a datagram in place of a TCP connection")
	cmd.Flags().DurationVar(&f.timeout, "timeout", reach.DefaultTimeout,
		"how long to wait for the connection, at most "+
			reach.MostTimeout.String())
	cmd.RunE = func(c *cobra.Command, _ []string) error { return f.run(c.Context(), std) }
	return cmd
}

// endsAsFlags rejects the ends of a trace that are given without their flags.
func endsAsFlags(c *cobra.Command, args []string) error {
	switch len(args) {
	case 0:
		return nil
	case 1:
		args = append(args, "DESTINATION")
	}
	return fmt.Errorf("%s takes its ends by flags: `%s --from %s --to %s`", nameOf(c), c.CommandPath(), args[0],
		strings.Join(args[1:], " "))
}

// run makes the test connection, reads the objects around it and prints the trace. A failed connection is exit code 1.
func (f *traceFlags) run(ctx context.Context, std Stdio) error {
	if f.output != "" && f.output != "json" {
		return fmt.Errorf("-o %s is not known: json, or leave it out", f.output)
	}
	if len(f.to) == 0 {
		f.to = []string{""} // its error says what is missing
	}
	destinations := make([]ask.Destination, len(f.to))
	for i, to := range f.to {
		var err error
		if destinations[i], err = parseDestination(to, f.namespace); err != nil {
			return err
		}
	}
	ns, name, err := f.source(ctx)
	if err != nil {
		return err
	}
	cl, err := f.clientset(responseTimeout + f.timeout)
	if err != nil {
		return err
	}
	from, err := cl.CoreV1().Pods(ns).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return err
	}
	reached := true
	for i, to := range destinations {
		t, err := ask.Trace(ctx, cl, from, &ask.TraceQuestion{
			To:      to,
			As:      f.to[i],
			UDP:     f.udp,
			Timeout: f.timeout,
		})
		if wrong, ok := errors.AsType[*ask.DestinationError](err); ok {
			return fmt.Errorf("--to %s: %w", f.to[i], wrong.Err)
		}
		if err != nil {
			return err
		}
		reached = reached && t.Reached()
		if f.output == "json" {
			if err := printJSON(std.Out, t); err != nil {
				return err
			}
			continue
		}
		if i > 0 {
			_, _ = fmt.Fprintln(std.Out) // an error means that the terminal is gone
		}
		out := std.screen()
		packet.RenderTrace(out, t, out.color)
	}
	if !reached {
		return exitError(1)
	}
	return nil
}

// source is the pod of --from: of a workload the one that fares best.
func (f *traceFlags) source(ctx context.Context) (namespace, name string, err error) {
	word, rest, ok := strings.Cut(f.from, "/")
	kind, known := knownType(word)
	switch {
	case f.from != "" && !ok:
		return f.namespace, f.from, nil
	case known && kind == "pod":
		return objectName("--from", kind+"/"+rest, f.namespace, "pod")
	case known && slices.ContainsFunc(ask.Owners, func(o ask.Owner) bool { return o.Words[0] == kind }):
		_, all, err := f.target(ctx, kind+"/"+rest)
		if err != nil {
			return "", "", err
		}
		return f.namespace, all.List[len(all.List)-1].Name, nil
	}
	return objectName("--from", f.from, f.namespace, "pod")
}

// clientset returns a client that fails if the server is silent for wait.
func (f *storyFlags) clientset(wait time.Duration) (*kubernetes.Clientset, error) {
	cfg, err := f.rest()
	if err != nil {
		return nil, err
	}
	limitSilence(cfg, wait)
	return kubernetes.NewForConfig(cfg)
}

// parseDestination parses --to.
func parseDestination(text, namespace string) (ask.Destination, error) {
	if text == "" {
		return ask.Destination{}, errors.New("--to is missing: say where to, such as svc/web:80")
	}
	if kind, rest, ok := strings.Cut(text, "/"); ok {
		at, port, _ := strings.Cut(rest, ":")
		if known, ok := knownType(kind); ok {
			kind = known
		}
		if kind == "pod" {
			ns, name, err := objectName("--to", kind+"/"+at, namespace, kind)
			return ask.Destination{
				Kind:      "pod",
				Namespace: ns,
				Name:      name,
				Port:      port,
			}, err
		}
		if kind == "node" && at != "" && !strings.Contains(at, "/") {
			return ask.Destination{Kind: "node", Name: at, Port: port}, nil
		}
		ns, name, err := objectName("--to", kind+"/"+at, namespace, "svc")
		return ask.Destination{
			Kind:      "service",
			Namespace: ns,
			Name:      name,
			Port:      port,
		}, err
	}
	if ip, err := netip.ParseAddr(text); err == nil {
		return ask.Destination{Host: ip.String()}, nil // a missing port is reported later
	}
	if ap, err := netip.ParseAddrPort(text); err == nil {
		return ask.Destination{Host: ap.Addr().String(), Port: strconv.Itoa(int(ap.Port()))}, nil
	}
	host, port, _ := strings.Cut(text, ":")
	return ask.Destination{Host: host, Port: port}, nil
}

// objectName parses KIND/NAME or KIND/NAMESPACE/NAME.
func objectName(flag, text, namespace string, kinds ...string) (ns, name string, err error) {
	parts := strings.Split(text, "/")
	switch {
	case len(parts) == 2 && slices.Contains(kinds, parts[0]) && parts[1] != "":
		return namespace, parts[1], nil
	case len(parts) == 3 && slices.Contains(kinds, parts[0]) && parts[1] != "" && parts[2] != "":
		return parts[1], parts[2], nil
	}
	return "", "", fmt.Errorf("%s %q is not of the form %s/NAME or %s/NAMESPACE/NAME", flag, text, kinds[0], kinds[0])
}
