// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strconv"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Parameters of the scenario "services". Only the endpoint of the last Service has a listener: this process.
const (
	manyServices   = 10_000
	endpointsOf    = 5
	lastService    = "many-last"
	changes        = 100
	clientsForMany = 64
	greeting       = "here"
)

// ownServices separate the scenario's rules from other clusters on this machine.
var ownServices = []string{"--service-cluster-ip-range", "10.124.0.0/16", "--healthz-bind-address", ""}

// servicesScenario: 10,000 Services with 5 endpoints each in the whole program. It measures resources, the time from a
// start until the rules work, and the time from one endpoint's write to the kernel.
func servicesScenario(ctx context.Context, e *env) ([]Result, error) {
	idle, err := usageOf(string(e.dir))
	if err != nil {
		return nil, err
	}
	if err := e.fillServices(ctx); err != nil {
		return nil, err
	}
	at, answer, err := e.answering(ctx)
	if err != nil {
		return nil, err
	}
	defer func() { _ = answer.Close() }() // this ends its goroutine
	front, err := e.lastOne(ctx, at)
	if err != nil {
		return nil, err
	}
	if _, err := until(ctx, front, true); err != nil {
		return nil, err
	}
	if err := sleep(ctx, 10*time.Second); err != nil { // the heap settles
		return nil, err
	}
	full, err := usageOf(string(e.dir))
	if err != nil {
		return nil, err
	}
	took, err := e.flips(ctx, front)
	if err != nil {
		return nil, err
	}
	if err := e.command(ctx, "down"); err != nil { // this removes the rules
		return nil, err
	}
	var first time.Time
	group, both := errgroup.WithContext(ctx)
	group.Go(func() (err error) { // the rules may be there before the node is Ready
		first, err = until(both, front, true)
		return err
	})
	group.Go(func() error { return e.start(both, ownServices...) })
	if err := group.Wait(); err != nil {
		return nil, err
	}
	if err := sleep(ctx, 10*time.Second); err != nil {
		return nil, err
	}
	again, err := usageOf(string(e.dir))
	if err != nil {
		return nil, err
	}
	return []Result{
		{
			Scenario: "services",
			Figure:   "process start to the first connection through one of 10,000 Services of 5 endpoints",
			Value:    first.Sub(e.begin).Seconds(),
			Unit:     "s",
		},
		{
			Scenario: "services",
			Figure:   "process start to the node Ready with them",
			Value:    e.up.Seconds(),
			Unit:     "s",
		},
		{
			Scenario: "services",
			Figure:   "an endpoint's change from its write to the kernel, p50",
			Value:    ms(took[len(took)/2]),
			Unit:     "ms",
			Limit:    10,
		},
		{
			Scenario: "services",
			Figure:   "the same, p99",
			Value:    ms(took[len(took)*99/100]),
			Unit:     "ms",
		},
		{
			Scenario: "services",
			Figure:   "memory for them, all processes, made",
			Value:    mb(full.rss - idle.rss),
			Unit:     "MB",
		},
		{
			Scenario: "services",
			Figure:   "memory for them, all processes, after a start",
			Value:    mb(again.rss - idle.rss),
			Unit:     "MB",
		},
	}, nil
}

// fillServices creates the Services without selectors, and an EndpointSlice for each.
func (e *env) fillServices(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	for c := range clientsForMany {
		group.Go(func() error {
			for i := c; i < manyServices-1; i += clientsForMany {
				var addresses []string
				for k := range endpointsOf {
					n := i*endpointsOf + k
					addresses = append(addresses, fmt.Sprintf("10.200.%d.%d", n/250, 1+n%250))
				}
				if err := e.serviceOf(ctx, "many-"+strconv.Itoa(i), 8080, addresses...); err != nil {
					return err
				}
			}
			return nil
		})
	}
	return group.Wait()
}

// serviceOf creates a Service and its EndpointSlice.
func (e *env) serviceOf(ctx context.Context, name string, port int32, addresses ...string) error {
	if err := e.service(ctx, name, nil); err != nil {
		return err
	}
	slice := &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Name: name, Labels: map[string]string{discoveryv1.LabelServiceName: name}},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports:       []discoveryv1.EndpointPort{{Name: new(""), Port: &port, Protocol: new(corev1.ProtocolTCP)}},
	}
	for _, a := range addresses {
		slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{
			Addresses:  []string{a},
			Conditions: discoveryv1.EndpointConditions{Ready: new(true)},
		})
	}
	_, err := e.client.DiscoveryV1().EndpointSlices(namespace).Create(ctx, slice, metav1.CreateOptions{})
	return err
}

// answering listens on the node's address until it is closed.
func (e *env) answering(ctx context.Context) (*net.TCPAddr, net.Listener, error) {
	nodes, err := e.client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, nil, err
	}
	if len(nodes.Items) != 1 {
		return nil, nil, fmt.Errorf("%d nodes", len(nodes.Items))
	}
	i := slices.IndexFunc(nodes.Items[0].Status.Addresses, func(a corev1.NodeAddress) bool {
		return a.Type == corev1.NodeInternalIP
	})
	if i < 0 {
		return nil, nil, errors.New("the node has no address")
	}
	var lc net.ListenConfig
	listener, err := lc.Listen(ctx, "tcp", net.JoinHostPort(nodes.Items[0].Status.Addresses[i].Address, "0"))
	if err != nil {
		return nil, nil, err
	}
	go func() { // ends with the listener
		for {
			c, err := listener.Accept()
			if err != nil {
				return
			}
			_, _ = io.WriteString(c, greeting) // identifies this process
			_ = c.Close()
		}
	}()
	return listener.Addr().(*net.TCPAddr), listener, nil // the address of a TCP listener
}

// lastOne creates the Service whose endpoint is at, and returns its cluster IP and port.
func (e *env) lastOne(ctx context.Context, at *net.TCPAddr) (string, error) {
	if err := e.serviceOf(ctx, lastService, int32(at.Port), at.IP.String()); err != nil { // a port number
		return "", err
	}
	s, err := e.client.CoreV1().Services(namespace).Get(ctx, lastService, metav1.GetOptions{})
	if err != nil {
		return "", err
	}
	return net.JoinHostPort(s.Spec.ClusterIP, "80"), nil
}

// until connects to front until that succeeds, or fails if leads is false, and returns the time.
func until(ctx context.Context, front string, leads bool) (time.Time, error) {
	end := time.Now().Add(waitLimit)
	d := net.Dialer{Timeout: time.Second}
	for {
		c, err := d.DialContext(ctx, "tcp", front)
		now := time.Now()
		if err == nil {
			err = greeted(c)
		}
		if leads == (err == nil) {
			return now, nil
		}
		if ctx.Err() != nil || now.After(end) {
			return now, fmt.Errorf("connections to %s lead somewhere: want %t: %w", front, leads, err)
		}
		if err := sleep(ctx, 100*time.Microsecond); err != nil {
			return now, err
		}
	}
}

// greeted checks that the connection reaches this process.
func greeted(c net.Conn) error {
	defer func() { _ = c.Close() }() // nothing was sent
	got := make([]byte, len(greeting))
	if err := c.SetReadDeadline(time.Now().Add(100 * time.Millisecond)); err != nil {
		return err
	}
	if _, err := io.ReadFull(c, got); err != nil {
		return err
	}
	if string(got) != greeting {
		return fmt.Errorf("somebody else answers: %q", got)
	}
	return nil
}

// flips makes the last Service's endpoint unready and ready. It returns the sorted times that the kernel rules took.
func (e *env) flips(ctx context.Context, front string) ([]time.Duration, error) {
	var took []time.Duration
	for i := range changes {
		patch := fmt.Sprintf(`[{"op":"replace","path":"/endpoints/0/conditions/ready","value":%t}]`, i%2 == 1)
		begin := time.Now()
		if _, err := e.client.DiscoveryV1().EndpointSlices(namespace).Patch(ctx, lastService, types.JSONPatchType,
			[]byte(patch), metav1.PatchOptions{}); err != nil {
			return nil, err
		}
		at, err := until(ctx, front, i%2 == 1)
		if err != nil {
			return nil, err
		}
		took = append(took, at.Sub(begin))
	}
	slices.Sort(took)
	return took, nil
}
