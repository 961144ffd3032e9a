// SPDX-License-Identifier: Apache-2.0

package servers

import (
	"context"
	"errors"
	"math/rand/v2"
	"net"
	"net/netip"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"keelson/lib/dial"
)

// The pauses between attempts to read the list. The longest is also the interval of the reads where the agent may not
// watch it: API servers of Kubernetes let nodes read it only.
const (
	firstPause = time.Second
	longPause  = time.Minute
	watchLimit = 10 * time.Minute
)

// Follow keeps the list up to date by the Endpoints of the Service kubernetes until ctx ends. The object, not its
// slices: it is one of a fixed name, which a Role can name, and nodes may read it at every API server.
func (s *Servers) Follow(ctx context.Context, cfg *rest.Config) error {
	if s.given == "" {
		<-ctx.Done()
		return nil
	}
	quiet := rest.CopyConfig(cfg)
	quiet.WarningHandler = rest.NoWarnings{} // that Endpoints are deprecated
	cl, err := kubernetes.NewForConfig(quiet)
	if err != nil {
		return err
	}
	for pause := firstPause; ; {
		began := time.Now()
		if err := s.follow(ctx, cl); err != nil {
			s.cfg.Log.Debug("the list of API servers is read again", "err", err, "in", pause)
		}
		if time.Since(began) > longPause {
			pause = firstPause
		}
		timer := time.NewTimer(pause/2 + rand.N(pause)) // spreads load
		select {
		case <-ctx.Done():
			timer.Stop()
			return nil
		case <-timer.C:
		}
		pause = min(2*pause, longPause)
	}
}

// follow reads the list and then watches it until the watch ends.
func (s *Servers) follow(ctx context.Context, cl kubernetes.Interface) error {
	api := cl.CoreV1().Endpoints(metav1.NamespaceDefault)
	got, err := api.Get(ctx, "kubernetes", metav1.GetOptions{})
	if err != nil {
		return err
	}
	s.set(endpointsOf(got))
	limit := int64((watchLimit/2 + rand.N(watchLimit/2)) / time.Second) // spreads load
	w, err := api.Watch(ctx, metav1.ListOptions{
		FieldSelector:   fields.OneTermEqualSelector("metadata.name", "kubernetes").String(),
		ResourceVersion: got.ResourceVersion,
		TimeoutSeconds:  &limit,
	})
	if err != nil {
		return err
	}
	defer w.Stop()
	for e := range w.ResultChan() {
		now, ok := e.Object.(*corev1.Endpoints)
		if !ok {
			return errors.New("the watch failed")
		}
		s.set(endpointsOf(now))
	}
	return nil
}

// endpointsOf returns the addresses in the Endpoints of the Service kubernetes, as URLs write them.
func endpointsOf(e *corev1.Endpoints) []string {
	var out []string
	for _, set := range e.Subsets {
		for _, port := range set.Ports {
			for _, a := range set.Addresses {
				at, err := address(a.IP, strconv.Itoa(int(port.Port)))
				if err == nil && len(out) < Most {
					out = append(out, at)
				}
			}
		}
	}
	return out
}

// address returns IP and port as URLs write them, if another machine can have them.
func address(ip, port string) (string, error) {
	addr, err := netip.ParseAddr(ip)
	if err != nil {
		return "", err
	}
	number, err := strconv.ParseUint(port, 10, 16)
	if err != nil || number == 0 {
		return "", errors.New("no port: " + port)
	}
	at := dial.Canonical(netip.AddrPortFrom(addr, uint16(number)))
	if what := dial.Special(at.Addr()); what != "" {
		return "", errors.New(ip + " is " + what)
	}
	return net.JoinHostPort(at.Addr().String(), strconv.Itoa(int(at.Port()))), nil
}
