// SPDX-License-Identifier: Apache-2.0

package etcd

import (
	"path/filepath"
	"testing"
	"time"

	"keelson/store/etcd/etcdtest"
)

func TestTLS(t *testing.T) {
	member, mine := etcdtest.Certs(t)
	urls := etcdtest.URLs(etcdtest.Start(t, 1, &member))
	c, err := TLS(mine.CA, mine.Cert, mine.Key)
	if err != nil {
		t.Fatal(err)
	}
	s := open(t, Options{Servers: urls, TLS: c, Patience: time.Minute})
	f := newFollow(t, s)
	f.reach(t, createUntil(t, s, "/a"))

	_, strange := etcdtest.Certs(t)
	for name, files := range map[string]etcdtest.Files{
		"no certificate":               {CA: mine.CA},
		"a stranger's certificate":     {CA: mine.CA, Cert: strange.Cert, Key: strange.Key},
		"a server of another CA":       {CA: strange.CA, Cert: mine.Cert, Key: mine.Key},
		"neither CA nor a certificate": {},
	} {
		c, err := TLS(files.CA, files.Cert, files.Key)
		if err != nil {
			t.Fatal(err)
		}
		if s, err := Open(t.Context(), Options{Servers: urls, TLS: c, Patience: time.Second}); err == nil {
			_ = s.Close()
			t.Errorf("%s: Open succeeded", name)
		}
	}
	if _, err := TLS(filepath.Join(t.TempDir(), "none"), "", ""); err == nil {
		t.Error("a CA file that is not there: got no error")
	}
	if _, err := TLS(mine.Key, "", ""); err == nil {
		t.Error("a CA file without a certificate: got no error")
	}
}
