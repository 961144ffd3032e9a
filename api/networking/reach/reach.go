// SPDX-License-Identifier: Apache-2.0

// Package reach holds the words in which a node is asked where packets go, and answers: a probe from inside a pod, and
// what serves a Service. kubelet answers, the API server passes both on, timeline/packet and cli read them. It does no
// I/O.
package reach

import (
	"errors"
	"fmt"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// Param is the parameter of pods/exec that asks for a probe in place of a command: "tcp:HOST:PORT".
const Param = "keelson-probe"

// timeoutParam is its further one.
const timeoutParam = "keelson-probe-timeout"

// Bounds of a probe.
const (
	DefaultTimeout = 3 * time.Second
	MostTimeout    = 10 * time.Second
	mostHost       = 253 // of a name in DNS
)

// Asked is one connection to make.
type Asked struct {
	// Host is a name, or an address.
	Host     string
	Port     uint16
	Protocol corev1.Protocol
	Timeout  time.Duration
}

// Values are Asked as parameters.
func (a Asked) Values() url.Values {
	v := url.Values{Param: {strings.ToLower(string(a.Protocol)) + ":" + a.Host + ":" + strconv.Itoa(int(a.Port))}}
	if a.Timeout != 0 {
		v.Set(timeoutParam, a.Timeout.String())
	}
	return v
}

// Parse is the inverse of Values. What it returns is within the bounds.
func Parse(values url.Values) (Asked, error) {
	text := values.Get(Param)
	proto, rest, ok := strings.Cut(text, ":")
	colon := strings.LastIndexByte(rest, ':')
	if !ok || colon < 0 {
		return Asked{}, fmt.Errorf("%.300q is not of the form tcp:HOST:PORT", text)
	}
	asked := Asked{Host: rest[:colon], Protocol: corev1.Protocol(strings.ToUpper(proto)), Timeout: DefaultTimeout}
	port, err := strconv.ParseUint(rest[colon+1:], 10, 16)
	if err != nil || port == 0 {
		return Asked{}, fmt.Errorf("%.20q is no port: 1 to 65535", rest[colon+1:])
	}
	asked.Port = uint16(port)
	if asked.Protocol != corev1.ProtocolTCP && asked.Protocol != corev1.ProtocolUDP {
		return Asked{}, fmt.Errorf("%.20q is neither tcp nor udp", proto)
	}
	if err := checkHost(asked.Host); err != nil {
		return Asked{}, err
	}
	if text := values.Get(timeoutParam); text != "" {
		asked.Timeout, err = time.ParseDuration(text)
		if err != nil || asked.Timeout <= 0 || asked.Timeout > MostTimeout {
			return Asked{}, fmt.Errorf("%.20q is no time between 0 and %s", text, MostTimeout)
		}
	}
	return asked, nil
}

func checkHost(host string) error {
	if ip, err := netip.ParseAddr(host); err == nil {
		if ip.Zone() != "" || ip.IsUnspecified() || ip.IsMulticast() ||
			ip == netip.AddrFrom4([4]byte{255, 255, 255, 255}) {
			return fmt.Errorf("%s is no address of one machine", host)
		}
		return nil
	}
	if host == "" || len(host) > mostHost {
		return errors.New("want a name of 1 to 253 characters, or an address")
	}
	for _, c := range []byte(host) {
		if (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (c < '0' || c > '9') && c != '-' && c != '_' && c != '.' {
			return fmt.Errorf("%.300q is neither a name nor an address", host)
		}
	}
	if strings.HasPrefix(host, ".") || strings.Contains(host, "..") {
		return fmt.Errorf("%.300q is neither a name nor an address", host)
	}
	return nil
}

// Command is what a probe looks like to who judges commands in pods.
func (a Asked) Command() []string { return []string{Param, a.Values().Get(Param)} }

// Answer is what a probe found.
type Answer struct {
	Node string `json:"node"`
	// Names is how the name became an address; nil: it was one.
	Names *Names `json:"names,omitempty"`
	// Connection is what became of it; nil: there was no address to connect to.
	Connection *Connection `json:"connection,omitempty"`
}

// Names is how a pod's resolver looks for a name.
type Names struct {
	Servers  []string `json:"servers,omitempty"`
	Searches []string `json:"searches,omitempty"`
	NDots    int      `json:"ndots"`
	// Hosts says that the pod's hosts file has the name, so that no one was asked.
	Hosts bool `json:"hosts,omitempty"`
	// Tries are the questions, in order; the last one has the answer, if there was one.
	Tries     []Try        `json:"tries,omitempty"`
	Addresses []netip.Addr `json:"addresses,omitempty"`
}

// Try is a question to a DNS server.
type Try struct {
	Name   string `json:"name"`
	Search string `json:"search,omitempty"` // the path that was appended
	Server string `json:"server"`
	// Code is the answer's (NOERROR, NXDOMAIN); Error is why there was none.
	Code    string   `json:"code,omitempty"`
	Error   string   `json:"error,omitempty"`
	Aliases []string `json:"aliases,omitempty"`
	// Shared says that another cluster on the node's machine serves the server's address too, and may have answered.
	Shared    bool          `json:"shared,omitempty"`
	Addresses []netip.Addr  `json:"addresses,omitempty"`
	Took      time.Duration `json:"took"`
}

// Outcome is what became of a connection.
type Outcome string

// The outcomes. A datagram that no one answers is sent: that is all one can know.
const (
	Connected   Outcome = "connected"
	Refused     Outcome = "refused"
	TimedOut    Outcome = "timed out"
	Unreachable Outcome = "unreachable"
	Sent        Outcome = "sent"
	Answered    Outcome = "answered"
	Failed      Outcome = "failed"
)

// Connection is one that was tried.
type Connection struct {
	Local   netip.AddrPort `json:"local"`
	Remote  netip.AddrPort `json:"remote"`
	Outcome Outcome        `json:"outcome"`
	Error   string         `json:"error,omitempty"`
	Took    time.Duration  `json:"took"`
	// Endpoint is where the node's kernel sent it; not valid: to Remote, or no one knows.
	Endpoint netip.AddrPort `json:"endpoint"`
	// Route is by which way the node's packets leave to there.
	Route string `json:"route,omitempty"`
	// Shared says that another cluster on the node's machine serves Remote too.
	Shared bool `json:"shared,omitempty"`
}

// Serving is what a node does for a Service.
type Serving struct {
	Node string `json:"node"`
	// Rules are those of the service proxy; nil: NoRules says why.
	Rules   *Rules `json:"rules,omitempty"`
	NoRules string `json:"noRules,omitempty"`
	// DNS is what the cluster's DNS server answers this node for the Service's name; nil: no one was to be asked.
	DNS *Try `json:"dns,omitempty"`
}

// Rules are a Service's in a node's kernel.
type Rules struct {
	// Since is when they were written last; zero: the Service has none.
	Since time.Time `json:"since"`
	Ports []Port    `json:"ports,omitempty"`
	// Refused are frontends that somebody else has, and who.
	Refused []string `json:"refused,omitempty"`
	// Failing says since when the kernel has not taken what is new; zero: it has.
	Failing time.Time `json:"failing"`
}

// Port is a port of a Service as a node serves it.
type Port struct {
	Name      string           `json:"name,omitempty"`
	Protocol  string           `json:"protocol"`
	Fronts    []netip.AddrPort `json:"fronts"`
	NodePort  uint16           `json:"nodePort,omitempty"`
	Endpoints []netip.AddrPort `json:"endpoints,omitempty"` // the first ones
	Count     int              `json:"count"`
}

// MostEndpoints is the number of endpoints listed for a port.
const MostEndpoints = 100
