// SPDX-License-Identifier: Apache-2.0

package dra

import (
	"errors"
	"slices"

	"k8s.io/dynamic-resource-allocation/resourceclaim"

	"keelson/kubelet/records"
	"keelson/kubelet/rootdir"
)

// record is the checkpoint of a claim that pods of the node use. No container can read it.
type record struct {
	Namespace string   `json:"namespace"`
	Name      string   `json:"name"`
	UID       string   `json:"uid"`
	Pods      []string `json:"pods"`
	Drivers   []string `json:"drivers"`
	// Allocated are the devices of the claim's allocation when it was prepared. A later allocation may have others.
	Allocated []string `json:"allocated,omitempty"`
	// Prepared: all drivers have returned their Devices.
	Prepared bool     `json:"prepared,omitempty"`
	Devices  []device `json:"devices,omitempty"`
}

// device is a prepared device.
type device struct {
	Driver   string   `json:"driver"`
	Pool     string   `json:"pool"`
	Device   string   `json:"device"`
	ShareID  *string  `json:"shareID,omitempty"`
	Requests []string `json:"requests,omitempty"` // none: all
	CDI      []string `json:"cdi,omitempty"`
}

// serves reports whether the device belongs to a request; "": any.
func (d *device) serves(request string) bool {
	return request == "" || len(d.Requests) == 0 || slices.ContainsFunc(d.Requests, func(r string) bool {
		return r == request || resourceclaim.BaseRequestRef(r) == request
	})
}

const (
	recordsDir = "dra" // within the kubelet's directory
	maxRecord  = 4 << 20
)

func (r *record) key() string { return r.Namespace + "/" + r.Name }

func recordsOf(dir rootdir.Dir) records.Dir {
	return records.Dir{Root: dir, Name: recordsDir, Limit: maxRecord}
}

// save writes the record atomically.
func (r *record) save(dir rootdir.Dir) error {
	if err := r.check(); err != nil {
		return err
	}
	return recordsOf(dir).Save(r.UID+records.Suffix, r)
}

func (r *record) remove(dir rootdir.Dir) error { return recordsOf(dir).Remove(r.UID + records.Suffix) }

// check returns an error for a record without a claim's namespace or name.
func (r *record) check() error {
	if r.Namespace == "" || r.Name == "" {
		return errors.New("it names no claim")
	}
	return nil
}

// load reads all records, and returns the names of files that cannot be read.
func load(dir rootdir.Dir) (found map[string]*claim, damaged []string, err error) {
	found = map[string]*claim{}
	of := recordsOf(dir)
	names, err := of.Names()
	if err != nil {
		return nil, nil, err
	}
	for _, name := range names {
		c := &claim{}
		err := of.Read(name, &c.record)
		if err == nil {
			err = c.check()
		}
		if err != nil || c.UID+records.Suffix != name {
			damaged = append(damaged, name)
			continue
		}
		found[c.key()] = c
	}
	return found, damaged, nil
}
