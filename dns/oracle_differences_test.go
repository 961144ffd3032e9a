// SPDX-License-Identifier: Apache-2.0

package dns_test

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"

	mdns "github.com/miekg/dns"
)

// throughout lists differences that occur in many answers: what is left out of both before they are compared.
// Both are compared in lower case, because CoreDNS writes the domain in other names as the question has it.
var throughout = []struct {
	why string
	cut *regexp.Regexp
}{
	{"recursion is available for all names here, whatever is asked", regexp.MustCompile(` ra\b`)},
	{
		"CoreDNS repeats what the client has room for, here it is what this server has room for",
		regexp.MustCompile(` opt:\d+`),
	},
}

// difference is what is answered otherwise than by CoreDNS, and why.
type difference struct {
	why     string
	applies func(q question, theirs, ours string) bool
}

// what an answer is
func nodata(answer string) bool    { return strings.HasPrefix(answer, "noerror aa") && !answered(answer) }
func nxdomain(answer string) bool  { return strings.HasPrefix(answer, "nxdomain aa") }
func refused(answer string) bool   { return strings.HasPrefix(answer, "refused") }
func forwarded(answer string) bool { return !strings.Contains(answer, " aa") }
func answered(answer string) bool {
	parts := strings.Split(answer, "|")
	return len(parts) > 1 && strings.TrimSpace(parts[1]) != ""
}

// what a question asks for
func below(name string) bool   { return strings.HasSuffix(strings.ToLower(name), ".cluster.local.") }
func reverse(name string) bool { return strings.HasSuffix(strings.ToLower(name), ".arpa.") }
func label(name string, n int) string {
	return strings.ToLower(mdns.SplitDomainName(name)[n])
}

// alias reports whether the name is that of a service of type ExternalName.
func alias(name string) bool {
	return slices.Contains([]string{"outside", "missing", "inside", "twice", "lost", "itself", "ending"},
		label(name, 0))
}

var (
	portName   = regexp.MustCompile(`(?i)^_[a-z0-9-]+\._(tcp|udp|sctp)\.`)
	protoName  = regexp.MustCompile(`(?i)^_(tcp|udp|sctp)\.`)
	emptyPort  = regexp.MustCompile(`(?i)^_\._(tcp|udp|sctp)\.`)
	barePort   = regexp.MustCompile(`(?i)^[a-z0-9-]+\.(tcp|udp|sctp)\.[a-z0-9-]+\.[a-z0-9-]+\.svc\.`)
	podName    = regexp.MustCompile(`(?i)^[0-9a-f-]+\.[a-z0-9-]+\.pod\.`)
	belowPod   = regexp.MustCompile(`(?i)^a\.[0-9a-f-]+\.[a-z0-9-]+\.pod\.`)
	emptyNodes = regexp.MustCompile(
		`(?i)^(([a-z0-9-]+\.)?(svc|pod)|dns|dns-version)\.cluster\.local\.$|^cluster\.local\.$`)
)

var differences = []difference{
	{
		"classes other than IN are refused", func(q question, _, ours string) bool {
			return q.how == "chaos" && refused(ours)
		},
	},
	{"only a resolver asks for outside names without recursion, and its loop would not end", func(
		q question, theirs, ours string,
	) bool {
		return q.how == "nord" && forwarded(theirs) && refused(ours)
	}},
	{"ANY has one HINFO record for an answer (RFC 8482)", func(q question, _, ours string) bool {
		return q.qtype == mdns.TypeANY && strings.Contains(ours, "| @ 5 hinfo ")
	}},
	{"datagrams are 1,232 bytes at most, so that they are never cut in pieces", func(
		q question, theirs, ours string,
	) bool {
		return q.how == "do" && !strings.Contains(theirs, " tc") && strings.Contains(ours, " tc")
	}},
	{"the specification has SRV records for services only; CoreDNS has one of port 0 for each pod's name", func(
		q question, theirs, ours string,
	) bool {
		return q.qtype == typeSRV && podName.MatchString(q.name) && strings.Contains(theirs, " srv 0 100 0 ") &&
			nodata(ours)
	}},
	{"there is nothing below a pod's name; CoreDNS reads only the label next to the namespace", func(
		q question, theirs, ours string,
	) bool {
		return belowPod.MatchString(q.name) && !nxdomain(theirs) && nxdomain(ours)
	}},
	{"the name of a port has SRV records; CoreDNS has the service's addresses there too", func(
		q question, theirs, ours string,
	) bool {
		return (q.qtype == typeA || q.qtype == typeAAAA) && portName.MatchString(q.name) && answered(theirs) &&
			nodata(ours)
	}},
	{"the labels of ports begin with an underscore; CoreDNS does without", func(q question, theirs, ours string) bool {
		return barePort.MatchString(q.name) && answered(theirs) && nxdomain(ours)
	}},
	{"a port without a name has no name of its own; to CoreDNS an empty one is every port", func(
		q question, theirs, ours string,
	) bool {
		return emptyPort.MatchString(q.name) && !nxdomain(theirs) && nxdomain(ours)
	}},
	{"a name exists where there are names below it (RFC 8020): _tcp.web has _http._tcp.web", func(
		q question, theirs, ours string,
	) bool {
		return protoName.MatchString(q.name) && nxdomain(theirs) && nodata(ours)
	}},
	{
		"names that have other records, or names below them, exist for each type (RFC 8020); CoreDNS says of some " +
			"types that they do not", func(q question, theirs, ours string) bool {
			return emptyNodes.MatchString(q.name) && nxdomain(theirs) && nodata(ours)
		},
	},
	{"dns-version lives as long as all records; CoreDNS keeps it for 8 hours", func(
		q question, theirs, ours string,
	) bool {
		return q.qtype == typeTXT && strings.ReplaceAll(theirs, "28800 txt", "5 txt") == ours
	}},
	{"what does not exist has no SOA either; CoreDNS does not look", func(q question, theirs, ours string) bool {
		return q.qtype == mdns.TypeSOA && below(q.name) && nodata(theirs) && nxdomain(ours)
	}},
	{"an alias leads on whatever type is asked (RFC 1034, 3.6.2); CoreDNS follows it for A and AAAA", func(
		q question, theirs, ours string,
	) bool {
		return alias(q.name) && q.qtype != typeA && q.qtype != typeAAAA && nodata(theirs) &&
			strings.Contains(ours, "| @ 5 cname ")
	}},
	{"an alias of what does not exist says so (RFC 6604); CoreDNS says that there is no such record", func(
		q question, theirs, ours string,
	) bool {
		return alias(q.name) && strings.HasPrefix(theirs, "noerror aa") && nxdomain(ours) &&
			strings.Contains(ours, " cname ")
	}},
	{"a circle of aliases is a failure; CoreDNS says that there is no such record", func(
		q question, theirs, ours string,
	) bool {
		return label(q.name, 0) == "itself" && nodata(theirs) && strings.HasPrefix(ours, "servfail")
	}},
	{"the name of an address of the cluster is the cluster's for each type; CoreDNS asks others for all but PTR", func(
		q question, theirs, ours string,
	) bool {
		return reverse(q.name) && q.qtype != typePTR && forwarded(theirs) && nodata(ours)
	}},
	{
		"the reverse zones belong to others but for the cluster's addresses, each of which is a zone; to CoreDNS " +
			"they are all its own when it says no", func(q question, theirs, ours string) bool {
			return reverse(q.name) && strings.Contains(theirs, " 5 soa ns.dns.i") &&
				(forwarded(ours) || strings.Contains(ours, "@ 5 soa "))
		},
	},
	{
		"an address with a host name leads back to that name only; CoreDNS adds the names made of the address",
		func(
			q question, theirs, ours string,
		) bool {
			return q.qtype == typePTR && strings.Contains(theirs, ", @ 5 ptr db-1.db") &&
				ours == "noerror aa rd | @ 5 ptr db-1.db.shop.svc.cluster.local."
		},
	},
	{"a slice whose service does not exist says nothing", func(q question, theirs, _ string) bool {
		return q.qtype == typePTR && strings.HasSuffix(theirs, ".nosuch.shop.svc.cluster.local.")
	}},
}

// judge compares answers. Every difference needs a reason, every reason a difference.
func judge(t *testing.T, questions []question, theirs, ours map[question]string) {
	t.Helper()
	used := make([]int, len(differences))
	var out strings.Builder
	n := 0
	for _, q := range questions {
		them := theirs[q]
		we := ours[q]
		them = strings.ReplaceAll(strings.ToLower(them), strings.ToLower(clusterSOA), "(soa)")
		we = strings.ToLower(we)
		for _, c := range throughout {
			them = c.cut.ReplaceAllString(them, "")
			we = c.cut.ReplaceAllString(we, "")
		}
		if them == we {
			continue
		}
		known := false
		for i, d := range differences {
			if d.applies(q, them, we) {
				used[i]++
				known = true
				break
			}
		}
		if !known {
			n++
			fmt.Fprintf(&out, "%s\n  CoreDNS: %s\n  here:    %s\n", q, them, we)
		}
	}
	if n > 0 {
		t.Errorf("%d answers differ from CoreDNS' without a reason:\n%s", n, out.String())
	}
	for i, d := range differences {
		if used[i] == 0 {
			t.Errorf("nothing is answered otherwise because %s", d.why)
		}
	}
}
