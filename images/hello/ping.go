// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"time"

	probing "github.com/prometheus-community/pro-bing"
)

var pingSyntax = optionSyntax{letters: "46c:i:qs:W:w:", usage: "ping [-4|-6] [-c COUNT] [-i SECONDS] [-W SECONDS] [-q] HOST"}

// ping sends ICMP echo requests, one a second, until it is interrupted or has sent -c of them. The exit code is 1 if no
// answer came. It needs CAP_NET_RAW, which containers have by default, or the sysctl net.ipv4.ping_group_range.
func ping(args []string, std stdio) int {
	opts, hosts, err := pingSyntax.parse(args)
	if err == nil && len(hosts) != 1 {
		err = pingSyntax.wantUsage()
	}
	if err != nil {
		return complain(std, "ping", err)
	}
	pinger := probing.New(hosts[0])
	switch {
	case opts.has('4'):
		pinger.SetNetwork("ip4")
	case opts.has('6'):
		pinger.SetNetwork("ip6")
	}
	seconds := func(letter byte, otherwise time.Duration) time.Duration {
		if v := opts[letter]; len(v) > 0 && err == nil {
			var d time.Duration
			d, err = duration(v[0])
			return d
		}
		return otherwise
	}
	pinger.Interval = max(seconds('i', time.Second), 10*time.Millisecond)
	wait := seconds('W', 10*time.Second)
	pinger.Timeout = seconds('w', 1<<62)
	if count := opts['c']; len(count) > 0 {
		if pinger.Count = atoi(count[0], 0); pinger.Count < 1 {
			return complain(std, "ping", pingSyntax.wantUsage())
		}
		pinger.Timeout = min(pinger.Timeout, time.Duration(pinger.Count-1)*pinger.Interval+wait)
	}
	if err == nil {
		err = pinger.Resolve()
	}
	if err != nil {
		return complain(std, "ping", err)
	}
	if !opts.has('q') {
		pinger.OnRecv = func(p *probing.Packet) {
			fmt.Fprintf(std.out, "%d bytes from %s: seq=%d ttl=%d time=%.3f ms\n", p.Nbytes, p.IPAddr, p.Seq, p.TTL,
				float64(p.Rtt.Microseconds())/1000)
		}
	}
	fmt.Fprintf(std.out, "PING %s (%s): %d data bytes\n", hosts[0], pinger.IPAddr(), pinger.Size)
	pinger.SetPrivileged(true)
	if err = pinger.Run(); err != nil { // without the capability
		pinger.SetPrivileged(false)
		err = pinger.Run()
	}
	if err != nil {
		return complain(std, "ping", fmt.Errorf("%w (ping needs the capability NET_RAW)", err))
	}
	sum := pinger.Statistics()
	fmt.Fprintf(std.out, "\n--- %s ping statistics ---\n", hosts[0])
	fmt.Fprintf(std.out, "%d packets transmitted, %d packets received, %.0f%% packet loss\n", sum.PacketsSent,
		sum.PacketsRecv, sum.PacketLoss)
	if sum.PacketsRecv == 0 {
		return 1
	}
	fmt.Fprintf(std.out, "round-trip min/avg/max = %.3f/%.3f/%.3f ms\n", float64(sum.MinRtt.Microseconds())/1000,
		float64(sum.AvgRtt.Microseconds())/1000, float64(sum.MaxRtt.Microseconds())/1000)
	return 0
}
