// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"

	"golang.org/x/net/dns/dnsmessage"
)

var recordTypes = map[string]dnsmessage.Type{
	"A":     dnsmessage.TypeA,
	"AAAA":  dnsmessage.TypeAAAA,
	"CNAME": dnsmessage.TypeCNAME,
	"MX":    dnsmessage.TypeMX,
	"NS":    dnsmessage.TypeNS,
	"PTR":   dnsmessage.TypePTR,
	"SOA":   dnsmessage.TypeSOA,
	"SRV":   dnsmessage.TypeSRV,
	"TXT":   dnsmessage.TypeTXT,
}

var errNslookupUsage = errors.New("usage: nslookup [-type=A|AAAA|CNAME|MX|NS|PTR|SOA|SRV|TXT] NAME|ADDRESS " +
	"[SERVER[:PORT]]")

// lookupCall is one call of nslookup.
type lookupCall struct {
	types        []dnsmessage.Type
	name, server string // server is empty: those of the resolver
}

func parseLookup(args []string) (lookupCall, error) {
	var call lookupCall
	var words []string
	for _, a := range args[1:] {
		option, value, _ := strings.Cut(strings.TrimPrefix(a, "-"), "=")
		switch {
		case !strings.HasPrefix(a, "-"):
			words = append(words, a)
		case option == "type" || option == "query" || option == "querytype" || option == "q":
			kind, ok := recordTypes[strings.ToUpper(value)]
			if !ok {
				return call, fmt.Errorf("type %q is not known; %w", value, errNslookupUsage)
			}
			call.types = append(call.types, kind)
		default:
			return call, fmt.Errorf("option %s is not known; %w", a, errNslookupUsage)
		}
	}
	if len(words) == 0 || len(words) > 2 {
		return call, errNslookupUsage
	}
	call.name = words[0]
	if len(words) == 2 {
		call.server = words[1]
	}
	if ip, err := netip.ParseAddr(call.name); err == nil {
		call.name = reverse(ip)
		if call.types == nil {
			call.types = []dnsmessage.Type{dnsmessage.TypePTR}
		}
	}
	if call.types == nil {
		call.types = []dnsmessage.Type{dnsmessage.TypeA, dnsmessage.TypeAAAA}
	}
	return call, nil
}

// reverse is the name whose PTR record says who has an address.
func reverse(ip netip.Addr) string {
	var labels []string
	if ip = ip.Unmap(); ip.Is4() {
		for _, b := range ip.As4() {
			labels = append(labels, fmt.Sprint(b))
		}
		slices.Reverse(labels)
		return strings.Join(labels, ".") + ".in-addr.arpa."
	}
	for _, b := range ip.As16() {
		labels = append(labels, fmt.Sprintf("%x", b>>4), fmt.Sprintf("%x", b&15))
	}
	slices.Reverse(labels)
	return strings.Join(labels, ".") + ".ip6.arpa."
}

// nslookup prints what DNS says about a name. Its output is busybox's.
func nslookup(args []string, std stdio) int {
	call, err := parseLookup(args)
	if err != nil {
		return complain(std, "nslookup", err)
	}
	r, err := readResolver("/etc/resolv.conf")
	if err != nil {
		return complain(std, "nslookup", err)
	}
	if call.server != "" {
		if r.servers, err = serverAddresses(call.server); err != nil {
			return complain(std, "nslookup", err)
		}
	}
	return r.print(call, std)
}

// serverAddresses resolves SERVER or SERVER:PORT.
func serverAddresses(server string) ([]string, error) {
	host, port, err := net.SplitHostPort(server)
	if err != nil {
		host = strings.Trim(server, "[]")
		port = "53"
	}
	ips, err := net.LookupHost(host) //nolint:noctx // a program of its own: there is no context
	if err != nil {
		return nil, fmt.Errorf("server %s: %w", host, err)
	}
	var out []string
	for _, ip := range ips[:min(len(ips), maxServers)] {
		out = append(out, net.JoinHostPort(ip, port))
	}
	return out, nil
}

// print prints the records of the first name that has some, or why there are none. The result is the exit code.
func (r *resolver) print(call lookupCall, std stdio) int {
	code := dnsmessage.RCodeNameError
	head := ""
	for _, name := range r.candidates(call.name) {
		var text strings.Builder
		for _, kind := range call.types {
			message, server, err := r.ask(name, kind)
			if errors.Is(err, errUnreached) {
				fmt.Fprintln(std.out, err)
				return 1
			}
			if err != nil {
				return complain(std, "nslookup", err)
			}
			host, _, _ := net.SplitHostPort(server)
			head = fmt.Sprintf("Server:\t\t%s\nAddress:\t%s\n\n", host, server)
			if message.RCode != dnsmessage.RCodeNameError {
				code = message.RCode
			}
			for _, a := range message.Answers {
				if line := recordText(a); !strings.Contains(text.String(), line) { // an alias comes with each type
					text.WriteString(line)
				}
			}
		}
		if text.Len() > 0 {
			return write(std, "nslookup", head+text.String()+"\n")
		}
	}
	name := strings.TrimSuffix(call.name, ".")
	if code == dnsmessage.RCodeSuccess {
		fmt.Fprintf(std.out, "%s*** Can't find %s: No answer\n\n", head, name)
	} else {
		fmt.Fprintf(std.out, "%s** server can't find %s: %s\n\n", head, name, codeName(code))
	}
	return 1
}

func codeName(code dnsmessage.RCode) string {
	names := map[dnsmessage.RCode]string{
		dnsmessage.RCodeFormatError:    "FORMERR",
		dnsmessage.RCodeServerFailure:  "SERVFAIL",
		dnsmessage.RCodeNameError:      "NXDOMAIN",
		dnsmessage.RCodeNotImplemented: "NOTIMP",
		dnsmessage.RCodeRefused:        "REFUSED",
	}
	return or(names[code], fmt.Sprintf("code %d", code))
}

// recordText is one record, as lines.
func recordText(resource dnsmessage.Resource) string {
	plain := func(n dnsmessage.Name) string { return strings.TrimSuffix(n.String(), ".") }
	owner := plain(resource.Header.Name)
	switch b := resource.Body.(type) {
	case *dnsmessage.AResource:
		return fmt.Sprintf("Name:\t%s\nAddress: %s\n", owner, netip.AddrFrom4(b.A))
	case *dnsmessage.AAAAResource:
		return fmt.Sprintf("Name:\t%s\nAddress: %s\n", owner, netip.AddrFrom16(b.AAAA))
	case *dnsmessage.CNAMEResource:
		return fmt.Sprintf("%s\tcanonical name = %s\n", owner, plain(b.CNAME))
	case *dnsmessage.MXResource:
		return fmt.Sprintf("%s\tmail exchanger = %d %s\n", owner, b.Pref, plain(b.MX))
	case *dnsmessage.NSResource:
		return fmt.Sprintf("%s\tnameserver = %s\n", owner, plain(b.NS))
	case *dnsmessage.PTRResource:
		return fmt.Sprintf("%s\tname = %s\n", owner, plain(b.PTR))
	case *dnsmessage.SOAResource:
		return fmt.Sprintf("%s\n\torigin = %s\n\tmail addr = %s\n\tserial = %d\n\trefresh = %d\n\tretry = "+
			"%d\n\texpire = %d\n\tminimum = %d\n",
			owner, plain(b.NS), plain(b.MBox), b.Serial, b.Refresh, b.Retry, b.Expire, b.MinTTL)
	case *dnsmessage.SRVResource:
		return fmt.Sprintf("%s\tservice = %d %d %d %s\n", owner, b.Priority, b.Weight, b.Port, plain(b.Target))
	case *dnsmessage.TXTResource:
		var parts []string
		for _, t := range b.TXT {
			parts = append(parts, fmt.Sprintf("%q", t))
		}
		return fmt.Sprintf("%s\ttext = %s\n", owner, strings.Join(parts, " "))
	}
	return fmt.Sprintf("%s\ttype %d\n", owner, resource.Header.Type)
}
