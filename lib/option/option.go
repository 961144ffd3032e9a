// SPDX-License-Identifier: Apache-2.0

// Package option is how a room says which options it has: as rows of data. A row names an option, what it sets, its
// usual value and its help. The rooms know no library of flags: cluster/flags makes flags of the rows.
package option

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"
)

// Row is one option.
type Row struct {
	// Name is its name on a command line, without dashes.
	Name string
	// Group is the heading in the help text under which it stands; empty: none.
	Group string
	// To is what it sets: a Value, or a pointer to a value of another type, of which Usual is the one without the
	// option. nil: the option is accepted without effect.
	To, Usual any
	// Each of several options of this name adds one entry to a list; else the entries are separated by commas.
	Each bool
	// Switch options mean "true" when they are given without a value.
	Switch bool
	// Help is its line in the help text, with the name of its value between back quotes.
	Help string
}

// Value parses and formats the value of an option.
type Value interface {
	String() string
	Set(text string) error
	// Type names the value in the help text.
	Type() string
}

// New is an option that sets a value of a plain type.
func New[T any](to *T, name string, usual T, help string) Row {
	return Row{Name: name, To: to, Usual: usual, Help: help}
}

// Each is an option that may be given several times.
func Each(to *[]string, name, help string) Row {
	row := New(to, name, nil, help)
	row.Each = true
	return row
}

// Set is an option with a type of its own. Its usual value is what it holds.
func Set(to Value, name, help string) Row { return Row{Name: name, To: to, Help: help} }

// Switch is Set for a value that is true or false.
func Switch(to Value, name, help string) Row {
	row := Set(to, name, help)
	row.Switch = true
	return row
}

// Not is an option that is true when what it sets is false, so that the zero value is the usual one.
func Not(to *bool, name, help string) Row { return Switch((*negated)(to), name, help) }

// Ignored is an option that is accepted without effect, so that existing command lines work. why is shown to users.
func Ignored(name, why string) Row { return Row{Name: name, Help: "without effect: " + why} }

// IgnoredSwitch is Ignored for a value that is true or false.
func IgnoredSwitch(name, why string) Row {
	row := Ignored(name, why)
	row.Switch = true
	return row
}

// In puts rows that have no group yet into one.
func In(group string, rows ...Row) []Row {
	for i := range rows {
		if rows[i].Group == "" {
			rows[i].Group = group
		}
	}
	return rows
}

// negated is a value with the opposite of its text.
type negated bool

// String formats the value.
func (n *negated) String() string { return strconv.FormatBool(!bool(*n)) }

// Set parses the value.
func (n *negated) Set(text string) error {
	v, err := strconv.ParseBool(text)
	*n = negated(!v)
	return err
}

// Type names the value.
func (*negated) Type() string { return "bool" }

// CIDRs is the Value of a list of CIDRs, separated by commas.
type CIDRs []netip.Prefix

// String formats the value.
func (p *CIDRs) String() string {
	var texts []string
	for _, x := range *p {
		texts = append(texts, x.String())
	}
	return strings.Join(texts, ",")
}

// Set parses the value.
func (p *CIDRs) Set(text string) error {
	*p = nil
	for one := range strings.SplitSeq(text, ",") {
		x, err := netip.ParsePrefix(one)
		if err != nil {
			return fmt.Errorf("%q is not a CIDR", one)
		}
		*p = append(*p, x.Masked())
	}
	return nil
}

// Type names the value.
func (*CIDRs) Type() string { return "strings" }
