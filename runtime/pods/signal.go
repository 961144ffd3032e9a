// SPDX-License-Identifier: Apache-2.0

package pods

import (
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Signal returns the container's stop signal, else the image's, else SIGTERM.
func (r *ContainerRecord) Signal() unix.Signal {
	name := r.StopSignal
	if sig := r.Config.V.GetStopSignal(); sig != runtimeapi.Signal_SIGNAL_RUNTIME_DEFAULT {
		name = strings.TrimPrefix(sig.String(), "SIGNAL_")
	}
	if sig, ok := parseSignal(name); ok {
		return sig
	}
	return unix.SIGTERM
}

// reportedSignal returns the signal that StopContainer sends, in CRI's enumeration.
func (r *ContainerRecord) reportedSignal() runtimeapi.Signal {
	want := r.Signal()
	for n, name := range runtimeapi.Signal_name {
		if sig, ok := parseSignal(name[len("SIGNAL_"):]); n != 0 && ok && sig == want && name != "SIGNAL_SIGCLD" &&
			name != "SIGNAL_SIGPOLL" && name != "SIGNAL_SIGIOT" {
			return runtimeapi.Signal(n)
		}
	}
	return runtimeapi.Signal_SIGNAL_RUNTIME_DEFAULT
}

// Real-time signals as the C library numbers them: it reserves the kernel's first two.
const (
	sigRTMin = 34
	sigRTMax = 64
)

// parseSignal parses "SIGTERM", "TERM", "15", and real-time signals: "SIGRTMIN+3", and CRI's "SIGRTMINPLUS3".
func parseSignal(s string) (unix.Signal, bool) {
	if n, err := strconv.Atoi(s); err == nil {
		return unix.Signal(n), n > 0 && n <= sigRTMax
	}
	s = strings.ToUpper(s)
	if !strings.HasPrefix(s, "SIG") {
		s = "SIG" + s
	}
	s = strings.NewReplacer("PLUS", "+", "MINUS", "-").Replace(s)
	for prefix, from := range map[string]int{"SIGRTMIN": sigRTMin, "SIGRTMAX": sigRTMax} {
		off, ok := strings.CutPrefix(s, prefix)
		if !ok {
			continue
		}
		if off == "" {
			return unix.Signal(from), true
		}
		n, err := strconv.Atoi(off)
		return unix.Signal(from + n), err == nil && from+n >= sigRTMin && from+n <= sigRTMax
	}
	sig := unix.SignalNum(s)
	return sig, sig != 0
}
