// SPDX-License-Identifier: Apache-2.0

package credentials

import (
	"context"
	"crypto"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	"k8s.io/client-go/kubernetes"

	"keelson/apiserver"
	"keelson/auth/authn"
	"keelson/pki"
)

// UsersPath is where the API server serves what it knows of its keys that are being replaced.
const UsersPath = "/keelson/v1/key-users"

// kubeletsParameter is the parameter of UsersPath by which the server asks the kubelets, too.
const kubeletsParameter = "kubelets"

// keyUsers is what an API server knows of its keys.
type keyUsers struct {
	// Keys are the fingerprints of the keys that it trusts, by name. Signs are those that sign.
	Keys  map[string][]string `json:"keys"`
	Signs map[string]string   `json:"signs"`
	// Began is when the server began to notice uses: it forgets them with its process.
	Began time.Time `json:"began"`
	// Users are the last uses of client certificates that a key has signed that is being replaced, Tokens those of
	// service-account tokens.
	Users  map[string]time.Time `json:"users"`
	Tokens map[string]time.Time `json:"tokens"`
	// Kubelets are the fingerprints of the keys that have signed what kubelets serve with, by node. Empty: the kubelet
	// does not answer. Those of other authorities are not listed.
	Kubelets map[string]string `json:"kubelets,omitempty"`
}

// ServeUsers serves which keys this server trusts, and who still uses one that is being replaced.
func ServeUsers(
	k *Keys, tokens *authn.Tokens, kubelets func(context.Context) ([]apiserver.ServingCertificate, error),
) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodGet {
			http.Error(w, "only GET", http.StatusMethodNotAllowed)
			return
		}
		out := k.users(tokens)
		if r.URL.Query().Has(kubeletsParameter) {
			served, err := kubelets(r.Context())
			if err != nil {
				http.Error(w, err.Error(), http.StatusInternalServerError)
				return
			}
			out.Kubelets = k.signedBy(served)
		}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(out) // an error is the connection's
	})
}

func (k *Keys) users(tokens *authn.Tokens) keyUsers {
	out := keyUsers{
		Keys:   map[string][]string{},
		Signs:  map[string]string{},
		Began:  k.opened,
		Users:  k.Clients.Replaced(),
		Tokens: tokens.Users(k.Tokens.Further()),
	}
	for _, a := range []*pki.Authority{k.CA, k.KubeletClientCA, k.proxyCA} {
		cert, _ := a.Signer()
		out.add(a.Name(), cert.PublicKey)
		for _, c := range a.Others() {
			out.add(a.Name(), c.PublicKey)
		}
	}
	out.add(TokenIdentity, k.Tokens.Signer().Public())
	for _, key := range k.Tokens.Further() {
		out.add(TokenIdentity, key)
	}
	return out
}

// add adds a key. The first one of a name signs.
func (u *keyUsers) add(name string, key crypto.PublicKey) {
	sum, err := pki.Fingerprint(key)
	if err != nil {
		return
	}
	if len(u.Keys[name]) == 0 {
		u.Signs[name] = sum
	}
	u.Keys[name] = append(u.Keys[name], sum)
}

// signedBy returns the fingerprints of the keys of the cluster's CA that have signed kubelets' certificates.
func (k *Keys) signedBy(served []apiserver.ServingCertificate) map[string]string {
	signer, _ := k.CA.Signer()
	out := map[string]string{}
	for _, s := range served {
		if s.Leaf == nil {
			out[s.Node] = ""
			continue
		}
		for _, ca := range append([]*x509.Certificate{signer}, k.CA.Others()...) {
			if s.Leaf.CheckSignatureFrom(ca) == nil {
				out[s.Node], _ = pki.Fingerprint(ca.PublicKey) // a CA's key has one
			}
		}
	}
	return out
}

// ask asks a server for its keys. It is an error if one of own is not trusted there, or if the old one still signs
// before a finish.
func (k Rotation) ask(ctx context.Context, cl kubernetes.Interface, own []string) (keyUsers, error) {
	var found keyUsers
	rq := cl.Discovery().RESTClient().Get().AbsPath(UsersPath)
	if k.Step == "finish" && k.Name == "ca" {
		rq = rq.Param(kubeletsParameter, "1")
	}
	b, err := rq.DoRaw(ctx)
	if err == nil {
		err = json.Unmarshal(b, &found)
	}
	if err != nil {
		return found, fmt.Errorf("it does not say which keys it trusts: %w", err)
	}
	for _, sum := range own {
		if !slices.Contains(found.Keys[k.Name], sum) {
			return found, fmt.Errorf("it does not trust the new key: copy pki/%s[.-]* from %s to it, or wait a moment",
				k.Name, k.Dir)
		}
	}
	if k.Step == "finish" {
		signs, err := pki.SigningKey(k.Dir.Sub("pki"), k.Name)
		if err != nil {
			return found, err
		}
		if found.Signs[k.Name] != signs {
			return found, fmt.Errorf("the old key signs there: run `keelson certs rotate %s use` on it, or wait a "+
				"moment", k.Name)
		}
	}
	return found, nil
}

const (
	// stillInUse is how long after its last use a certificate counts as in use. Nodes show theirs every ten seconds.
	stillInUse = time.Minute
	// tokenInUse is the same for tokens: a program that watches makes a request every five to ten minutes.
	tokenInUse = 10 * time.Minute
	// tokenLife is how long pods keep a token.
	tokenLife = time.Hour
)

// unused is an error if somebody needs what the old key has signed, or if the new one signs for too short a time to
// know. cl is a client of one of the servers.
func (k Rotation) unused(ctx context.Context, found []keyUsers, cl kubernetes.Interface) error {
	switch k.Name {
	case TokenIdentity:
		if late := lately(found, func(u keyUsers) map[string]time.Time { return u.Tokens }, tokenInUse); len(late) > 0 {
			return fmt.Errorf("tokens of the old key are in use by %s: wait an hour, in which pods get new ones, and "+
				"issue others again", some(late))
		}
		if err := k.signsFor(tokenLife, "pods get new tokens"); err != nil {
			return err
		}
		return noticed(found, tokenInUse)
	case "ca":
	default:
		return nil
	}
	if late := lately(found, func(u keyUsers) map[string]time.Time { return u.Users }, stillInUse); len(late) > 0 {
		return fmt.Errorf("certificates of the old key are in use by %s: wait a minute for nodes, and fetch "+
			"kubeconfigs again", some(late))
	}
	signs, err := pki.SigningKey(k.Dir.Sub("pki"), k.Name)
	if err != nil {
		return err
	}
	if err := kubeletsReady(found, signs); err != nil {
		return err
	}
	old, err := pki.OtherAuthorities(k.Dir.Sub("pki"), k.Name)
	if err != nil {
		return err
	}
	if err := bundlesReady(ctx, cl, old); err != nil {
		return err
	}
	if err := k.signsFor(stillInUse, "clients of the old key are noticed"); err != nil {
		return err
	}
	return noticed(found, stillInUse)
}

// noticed is an error if a server runs for less than a time, in which it would have noticed who uses the old key.
func noticed(found []keyUsers, least time.Duration) error {
	for _, server := range found {
		if until := server.Began.Add(least); time.Now().Before(until) {
			return fmt.Errorf("a server runs since %s only: wait until %s, in which time it notices who uses the old "+
				"key",
				server.Began.Local().Format(time.TimeOnly), until.Local().Format(time.TimeOnly))
		}
	}
	return nil
}

// signsFor is an error if the new key has begun to sign within a time, in which something happens.
func (k Rotation) signsFor(least time.Duration, what string) error {
	since, err := pki.SignsSince(k.Dir.Sub("pki"), k.Name)
	if err != nil {
		return err
	}
	if until := since.Add(least); time.Now().Before(until) {
		return fmt.Errorf("the new key signs since %s: wait until %s, in which time %s", since.Format(time.TimeOnly),
			until.Format(time.TimeOnly), what)
	}
	return nil
}

// lately returns who has used something within a time, at any of the servers.
func lately(found []keyUsers, of func(keyUsers) map[string]time.Time, within time.Duration) []string {
	late := map[string]bool{}
	for _, server := range found {
		for user, at := range of(server) {
			if time.Since(at) < within {
				late[user] = true
			}
		}
	}
	return slices.Sorted(maps.Keys(late))
}

// kubeletsReady is an error if a kubelet serves with a certificate of another key of the CA than signs, or answers no
// server.
func kubeletsReady(found []keyUsers, signs string) error {
	var silent, late []string
	by := map[string]string{}
	for _, server := range found {
		for node, sum := range server.Kubelets {
			if sum != "" || by[node] == "" {
				by[node] = sum
			}
		}
	}
	for _, node := range slices.Sorted(maps.Keys(by)) {
		switch by[node] {
		case signs:
		case "":
			silent = append(silent, node)
		default:
			late = append(late, node)
		}
	}
	switch {
	case len(late) > 0:
		return fmt.Errorf("the kubelets of %s serve with certificates of the old key: wait a minute, or look at `keelson "+
			"kubectl get csr`", some(late))
	case len(silent) > 0:
		return fmt.Errorf("the kubelets of %s do not answer, and would have to join again: start them, or remove the "+
			"nodes by `keelson node rm`", some(silent))
	}
	return nil
}

// bundleHolders are the lists of objects that say by which CA the API server verifies a webhook or another API server.
var bundleHolders = map[string]string{
	"validatingwebhookconfigurations": "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations",
	"mutatingwebhookconfigurations":   "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations",
	"apiservices":                     "/apis/apiregistration.k8s.io/v1/apiservices",
	"customresourcedefinitions":       "/apis/apiextensions.k8s.io/v1/customresourcedefinitions",
}

// withBundle is what has a caBundle.
type withBundle struct {
	CABundle []byte `json:"caBundle"`
}

// bundleHolder is as much of the objects of bundleHolders as has a caBundle.
type bundleHolder struct {
	Metadata struct {
		Name string `json:"name"`
	} `json:"metadata"`
	Webhooks []struct {
		ClientConfig withBundle `json:"clientConfig"`
	} `json:"webhooks"`
	Spec struct {
		withBundle

		Conversion struct {
			Webhook struct {
				ClientConfig withBundle `json:"clientConfig"`
			} `json:"webhook"`
		} `json:"conversion"`
	} `json:"spec"`
}

func (h *bundleHolder) bundles() [][]byte {
	out := [][]byte{h.Spec.CABundle, h.Spec.Conversion.Webhook.ClientConfig.CABundle}
	for _, hook := range h.Webhooks {
		out = append(out, hook.ClientConfig.CABundle)
	}
	return out
}

// bundlesReady is an error if the API server would verify a webhook or another API server by the old key alone: an
// attacker who has it could act as one of them, and what the new key signs for them would be refused.
func bundlesReady(ctx context.Context, cl kubernetes.Interface, old []*x509.Certificate) error {
	var late []string
	for _, resource := range slices.Sorted(maps.Keys(bundleHolders)) {
		b, err := cl.Discovery().RESTClient().Get().AbsPath(bundleHolders[resource]).DoRaw(ctx)
		var list struct {
			Items []bundleHolder `json:"items"`
		}
		if err == nil {
			err = json.Unmarshal(b, &list)
		}
		if err != nil {
			return fmt.Errorf("list %s: %w", resource, err)
		}
		for i := range list.Items {
			if slices.ContainsFunc(list.Items[i].bundles(), func(pem []byte) bool { return onlyOf(pem, old) }) {
				late = append(late, resource+"/"+list.Items[i].Metadata.Name)
			}
		}
	}
	if len(late) > 0 {
		return errors.New("the caBundle of " + some(late) + " is the old key's: replace it by that of the ConfigMap " +
			"kube-root-ca.crt")
	}
	return nil
}

// onlyOf reports whether all certificates of a bundle have the keys of cas.
func onlyOf(bundle []byte, cas []*x509.Certificate) bool {
	certs, err := pki.Certificates(bundle)
	return err == nil && !slices.ContainsFunc(certs, func(c *x509.Certificate) bool {
		return !slices.ContainsFunc(cas, func(ca *x509.Certificate) bool {
			return string(ca.RawSubjectPublicKeyInfo) == string(c.RawSubjectPublicKeyInfo)
		})
	})
}

// mostNamed is how many names an error lists.
const mostNamed = 10

// some is a list of names in a sentence.
func some(names []string) string {
	if len(names) <= mostNamed {
		return strings.Join(names, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(names[:mostNamed], ", "), len(names)-mostNamed)
}
