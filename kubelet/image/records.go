// SPDX-License-Identifier: Apache-2.0

package image

import (
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// The file format is that of Kubernetes' kubelet (KEP-2535), so that a node can switch between it and this one.
const (
	recordVersion = "kubelet.config.k8s.io/v1beta1"
	recordPrefix  = "sha256-"
	tmpSuffix     = ".tmp"
	maxRecord     = 1 << 20 // bytes of a record that are read
)

// imagePullIntent records that the kubelet is pulling an image. If the image exists after a crash, it was not
// preloaded.
type imagePullIntent struct {
	metav1.TypeMeta `json:",inline"`
	Image           string `json:"image"`
}

// imagePulledRecord has the credentials with which the kubelet pulled an image.
type imagePulledRecord struct {
	metav1.TypeMeta `json:",inline"`
	LastUpdatedTime metav1.Time `json:"lastUpdatedTime"`
	// ImageRef is the image's id in the runtime.
	ImageRef string `json:"imageRef"`
	// CredentialMapping is by repository: the image name in the pod, without tag and digest.
	CredentialMapping map[string]imagePullCredentials `json:"credentialMapping,omitempty"`
}

// imagePullCredentials are the credentials that have pulled an image from one repository. If they are empty, every pod
// is verified.
type imagePullCredentials struct {
	KubernetesSecrets         []imagePullSecret         `json:"kubernetesSecrets,omitempty"`
	KubernetesServiceAccounts []imagePullServiceAccount `json:"kubernetesServiceAccounts,omitempty"`
	// NodePodsAccessible: the pull needed no credentials, or those of the node.
	NodePodsAccessible bool `json:"nodePodsAccessible,omitempty"`
}

// imagePullSecret is one registry's entry in a pull secret.
type imagePullSecret struct {
	UID            string `json:"uid"`
	Namespace      string `json:"namespace"`
	Name           string `json:"name"`
	CredentialHash string `json:"credentialHash,omitempty"`
}

// imagePullServiceAccount is a service account whose token a credential provider used.
type imagePullServiceAccount struct {
	UID       string `json:"uid"`
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
}

func (s imagePullSecret) same(o imagePullSecret) bool {
	return s.UID == o.UID && s.Namespace == o.Namespace && s.Name == o.Name
}

// maxSecrets bounds the secrets in a record for one repository. The oldest are dropped, and then verified again.
const maxSecrets = 200

// records keeps intents and pulled records in files that only root can read.
//
// Invariants:
//  1. An intent is on disk before its pull starts, and stays until the pulled record is on disk. So a pulled image
//     never counts as preloaded, even after a power loss.
//  2. A record that cannot be read counts as a record without credentials.
type records struct {
	pullingDir, pulledDir string

	mu      sync.Mutex
	pulling map[string]int // number of running pulls by image
}

func openRecords(dir string) (*records, error) {
	r := &records{
		pullingDir: filepath.Join(dir, "pulling"),
		pulledDir:  filepath.Join(dir, "pulled"),
		pulling:    map[string]int{},
	}
	for _, d := range []string{r.pullingDir, r.pulledDir} {
		if err := os.MkdirAll(d, 0o700); err != nil {
			return nil, fmt.Errorf("make directory of image pull records: %w", err)
		}
	}
	return r, nil
}

// fileOf returns the file of an intent (by image) or of a pulled record (by ID).
func fileOf(dir, key string) string {
	return filepath.Join(dir, fmt.Sprintf("%s%x", recordPrefix, sha256.Sum256([]byte(key))))
}

// begin writes the intent of a pull. The caller must call end once.
func (r *records) begin(image string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.pulling[image] == 0 {
		intent := imagePullIntent{
			TypeMeta: metav1.TypeMeta{Kind: "ImagePullIntent", APIVersion: recordVersion},
			Image:    image,
		}
		if err := writeRecord(fileOf(r.pullingDir, image), intent); err != nil {
			return fmt.Errorf("record image pull intent: %w", err)
		}
	}
	r.pulling[image]++
	return nil
}

// end writes the pulled record with creds; nil: the pull failed. If the record cannot be written, the intent stays.
func (r *records) end(image, id string, creds *imagePullCredentials) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.pulling[image]--
	if creds != nil {
		if err := r.addLocked(image, id, *creds); err != nil {
			return fmt.Errorf("write image pulled record: %w", err)
		}
	}
	if r.pulling[image] > 0 {
		return nil
	}
	delete(r.pulling, image)
	return removeRecord(fileOf(r.pullingDir, image))
}

// pulled reports whether the kubelet pulled an image, and which credentials have pulled it from the repository that
// image names.
func (r *records) pulled(image, id string) (pulled bool, creds imagePullCredentials) {
	r.mu.Lock()
	defer r.mu.Unlock()
	rec, err := r.readLocked(id)
	switch {
	case err == nil:
		return true, rec.CredentialMapping[repository(image)]
	case !errors.Is(err, fs.ErrNotExist):
		return true, creds
	case r.pulling[image] > 0:
		return true, creds
	}
	_, err = os.Lstat(fileOf(r.pullingDir, image))
	return !errors.Is(err, fs.ErrNotExist), creds
}

// add adds creds to the record of an image. Without creds it only records that the image was pulled.
func (r *records) add(image, id string, creds imagePullCredentials) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.addLocked(image, id, creds)
}

func (r *records) addLocked(image, id string, creds imagePullCredentials) error {
	rec, err := r.readLocked(id)
	if err != nil {
		rec = &imagePulledRecord{
			TypeMeta: metav1.TypeMeta{Kind: "ImagePulledRecord", APIVersion: recordVersion},
			ImageRef: id,
		}
	}
	merged, changed := merge(rec.CredentialMapping[repository(image)], creds)
	if err == nil && !changed {
		return nil
	}
	if changed {
		if rec.CredentialMapping == nil {
			rec.CredentialMapping = map[string]imagePullCredentials{}
		}
		rec.CredentialMapping[repository(image)] = merged
	}
	rec.LastUpdatedTime = metav1.Now()
	return writeRecord(fileOf(r.pulledDir, id), rec)
}

// merge adds credentials to those of a record. NodePodsAccessible stays set.
func merge(have, more imagePullCredentials) (imagePullCredentials, bool) {
	switch {
	case have.NodePodsAccessible:
		return have, false
	case more.NodePodsAccessible:
		return imagePullCredentials{NodePodsAccessible: true}, true
	}
	changed := false
	for _, s := range more.KubernetesSecrets {
		if slices.Contains(have.KubernetesSecrets, s) {
			continue
		}
		changed = true
		kept := slices.DeleteFunc(slices.Clone(have.KubernetesSecrets), s.same)
		kept = append(kept, s)
		have.KubernetesSecrets = kept[max(0, len(kept)-maxSecrets):]
	}
	return have, changed
}

func (r *records) readLocked(id string) (*imagePulledRecord, error) {
	rec := &imagePulledRecord{}
	if err := readRecord(fileOf(r.pulledDir, id), rec); err != nil {
		return nil, err
	}
	if rec.Kind != "ImagePulledRecord" || rec.ImageRef != id {
		return nil, fmt.Errorf("image pulled record of %s is for %s %q", id, rec.Kind, rec.ImageRef)
	}
	return rec, nil
}

// intents returns the images of interrupted pulls. It removes intents that cannot be read, since they name no image.
func (r *records) intents() ([]string, error) {
	files, err := recordFiles(r.pullingDir)
	var out []string
	for _, f := range files {
		intent := imagePullIntent{}
		if err := readRecord(f, &intent); err == nil && intent.Image != "" && fileOf(r.pullingDir, intent.Image) == f {
			out = append(out, intent.Image)
		}
	}
	return out, err
}

// resolveIntent replaces the intent of an interrupted pull by a record; id is the image's ID, empty if there is no
// image.
func (r *records) resolveIntent(image, id string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.pulling[image] > 0 {
		return nil
	}
	if id != "" {
		if err := r.addLocked(image, id, imagePullCredentials{}); err != nil {
			return err
		}
	}
	return removeRecord(fileOf(r.pullingDir, image))
}

// prune removes the records of images that are not in ids. Records that were written after since stay.
func (r *records) prune(ids map[string]bool, since time.Time) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	files, err := recordFiles(r.pulledDir)
	errs := []error{err}
	wanted := map[string]bool{}
	for id := range ids {
		wanted[fileOf(r.pulledDir, id)] = true
	}
	for _, f := range files {
		if fi, err := os.Stat(f); err == nil && !wanted[f] && fi.ModTime().Before(since) {
			errs = append(errs, removeRecord(f))
		}
	}
	return errors.Join(errs...)
}

func recordFiles(dir string) ([]string, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("list image pull records: %w", err)
	}
	var out []string
	for _, e := range entries {
		if e.Type().IsRegular() && strings.HasPrefix(e.Name(), recordPrefix) &&
			!strings.HasSuffix(e.Name(), tmpSuffix) {
			out = append(out, filepath.Join(dir, e.Name()))
		}
	}
	return out, nil
}

func readRecord(path string, into any) error {
	if fi, err := os.Stat(path); err != nil {
		return err
	} else if fi.Size() > maxRecord {
		return fmt.Errorf("image pull record %s has %d bytes, more than %d", path, fi.Size(), maxRecord)
	}
	b, err := os.ReadFile(path) // a file of our own directory
	if err != nil {
		return err
	}
	if err := json.Unmarshal(b, into); err != nil {
		return fmt.Errorf("image pull record %s: %w", path, err)
	}
	return nil
}

// writeRecord replaces a file and syncs it to disk.
func writeRecord(path string, record any) error {
	b, err := json.Marshal(record)
	if err != nil {
		return err
	}
	tmp := path + tmpSuffix
	f, err := os.OpenFile(tmp, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600) // a file of our own directory
	if err != nil {
		return err
	}
	_, err = f.Write(b)
	if err = errors.Join(err, f.Sync(), f.Close()); err == nil {
		err = os.Rename(tmp, path)
	}
	if err != nil {
		_ = os.Remove(tmp) // what matters is the first error
		return err
	}
	return syncDir(filepath.Dir(path))
}

func removeRecord(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove image pull record: %w", err)
	}
	return nil
}

func syncDir(dir string) error {
	d, err := os.Open(dir) // our own directory
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
