// SPDX-License-Identifier: Apache-2.0

package podspec

import (
	"fmt"
	"reflect"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"

	"keelson/api/internal/check"
)

func (c *Checker) volumes() {
	if len(c.spec.Volumes) == 0 {
		return
	}
	var names check.Set
	c.In("volumes")
	for i := range c.spec.Volumes {
		volume := &c.spec.Volumes[i]
		before := c.Len()
		c.Index(i)
		c.volumeSource(volume)
		if volume.Name == "" {
			c.Required("name", "")
		} else {
			c.Label("name", volume.Name)
		}
		if names.Has(volume.Name) {
			c.Duplicate("name", volume.Name)
		}
		if c.Len() == before {
			names.Add(volume.Name)
		} else {
			c.markBad(i)
		}
		if volume.PersistentVolumeClaim != nil && c.createsClaim(volume.PersistentVolumeClaim.ClaimName) {
			c.Invalid("persistentVolumeClaim.claimName", volume.PersistentVolumeClaim.ClaimName,
				"must not reference a PVC that gets created for an ephemeral volume")
		}
		c.Out()
	}
	c.Out()
}

func (c *Checker) markBad(i int) {
	if c.badVolumes == nil {
		c.badVolumes = map[int]bool{}
	}
	c.badVolumes[i] = true
}

// createsClaim tells whether an ephemeral volume of this pod has the claim called name.
func (c *Checker) createsClaim(name string) bool {
	if c.meta == nil || c.meta.Name == "" {
		return false
	}
	if c.ownClaims == nil {
		c.ownClaims = &check.Set{}
		for i := range c.spec.Volumes {
			if v := &c.spec.Volumes[i]; v.Ephemeral != nil {
				c.ownClaims.Add(c.meta.Name + "-" + v.Name)
			}
		}
	}
	return c.ownClaims.Has(name)
}

// sourceOrder are the volume sources in the order in which Kubernetes looks at them.
var sourceOrder = []string{
	"EmptyDir", "HostPath", "GitRepo", "GCEPersistentDisk", "AWSElasticBlockStore", "Secret", "NFS", "ISCSI",
	"Glusterfs", "Flocker",
	"PersistentVolumeClaim", "RBD", "Cinder", "CephFS", "Quobyte", "DownwardAPI", "FC", "FlexVolume", "ConfigMap",
	"AzureFile", "VsphereVolume",
	"PhotonPersistentDisk", "PortworxVolume", "AzureDisk", "StorageOS", "Projected", "ScaleIO", "CSI", "Ephemeral",
	"Image",
}

// twice are where Kubernetes reports a second source, if not where its fields are.
var twice = map[string]string{
	"GCEPersistentDisk":    "gcePersistentDisk",
	"AWSElasticBlockStore": "awsElasticBlockStore",
	"NFS":                  "nfs",
	"ISCSI":                "iscsi",
	"RBD":                  "rbd",
	"FC":                   "fc",
	"DownwardAPI":          "downwarAPI",
	"StorageOS":            "storageos",
	"CSI":                  "csi",
}

// TwiceName is where Kubernetes reports that the source is one too many.
func TwiceName(source string) string {
	if name, ok := twice[source]; ok {
		return name
	}
	return strings.ToLower(source[:1]) + source[1:]
}

// volumeSource wants exactly one source.
func (c *Checker) volumeSource(volume *corev1.Volume) {
	var one corev1.Volume
	all := reflect.ValueOf(&volume.VolumeSource).Elem()
	n := 0
	for _, source := range all.Fields() {
		if !source.IsNil() {
			n++
		}
	}
	switch n {
	case 0:
		c.Required("", "must specify a volume type")
		return
	case 1:
		c.onlySource(volume)
		return
	}
	n = 0
	for _, source := range sourceOrder {
		f := all.FieldByName(source)
		if f.IsNil() {
			continue
		}
		if n++; n > 1 {
			c.Forbidden(TwiceName(source), "may not specify more than 1 volume type")
			continue
		}
		one.Name = volume.Name
		reflect.ValueOf(&one.VolumeSource).Elem().FieldByName(source).Set(f)
		c.onlySource(&one)
	}
}

// onlySource checks the one source of volume.
func (c *Checker) onlySource(volume *corev1.Volume) {
	volumeSource := &volume.VolumeSource
	// in steps into child when its source is set.
	in := func(set bool, child string) bool {
		if set {
			c.In(child)
		}
		return set
	}
	if in(volumeSource.EmptyDir != nil, "emptyDir") {
		if q := volumeSource.EmptyDir.SizeLimit; q != nil && q.Sign() < 0 {
			c.Forbidden("sizeLimit", "SizeLimit field must be a valid resource quantity")
		}
		c.Out()
	}
	if in(volumeSource.HostPath != nil, "hostPath") {
		c.hostPath(volumeSource.HostPath)
		c.Out()
	}
	if in(volumeSource.Secret != nil, "secret") {
		c.requiredName("secretName", volumeSource.Secret.SecretName)
		c.mode("defaultMode", volumeSource.Secret.DefaultMode)
		c.keyPaths(volumeSource.Secret.Items)
		c.Out()
	}
	c.legacyVolume(volume, in)
	c.apiVolume(volume, in)
	if in(volumeSource.CSI != nil, "csi") {
		c.csi(volumeSource.CSI)
		c.Out()
	}
	if in(volumeSource.Ephemeral != nil, "ephemeral") {
		c.ephemeralVolume(volumeSource.Ephemeral)
		c.Out()
		c.ephemeralName(volume.Name)
	}
	if in(volumeSource.Image != nil, "image") {
		if volumeSource.Image.Reference == "" {
			c.Required("reference", "")
		}
		c.pullPolicy("pullPolicy", volumeSource.Image.PullPolicy)
		c.Out()
	}
}

// apiVolume checks the sources whose files come from the API, and claims.
func (c *Checker) apiVolume(v *corev1.Volume, in func(set bool, child string) bool) {
	volumeSource := &v.VolumeSource
	if in(volumeSource.PersistentVolumeClaim != nil, "persistentVolumeClaim") {
		c.requiredName("claimName", volumeSource.PersistentVolumeClaim.ClaimName)
		c.Out()
	}
	if in(volumeSource.DownwardAPI != nil, "downwardAPI") {
		c.mode("defaultMode", volumeSource.DownwardAPI.DefaultMode)
		for i := range volumeSource.DownwardAPI.Items {
			c.downwardFile(&volumeSource.DownwardAPI.Items[i])
		}
		c.Out()
	}
	if in(volumeSource.ConfigMap != nil, "configMap") {
		c.requiredName("name", volumeSource.ConfigMap.Name)
		c.mode("defaultMode", volumeSource.ConfigMap.DefaultMode)
		c.keyPaths(volumeSource.ConfigMap.Items)
		c.Out()
	}
	if in(volumeSource.Projected != nil, "projected") {
		c.mode("defaultMode", volumeSource.Projected.DefaultMode)
		c.projected(volumeSource.Projected)
		c.Out()
	}
}

func (c *Checker) requiredName(child, name string) {
	if name == "" {
		c.Required(child, "")
	}
}

func (c *Checker) hostPath(s *corev1.HostPathVolumeSource) {
	if s.Path == "" {
		c.Required("path", "")
		return
	}
	c.noBacksteps("path", s.Path)
	check.Pointer(c.List, "type", s.Type, corev1.HostPathUnset, corev1.HostPathBlockDev, corev1.HostPathCharDev,
		corev1.HostPathDirectory,
		corev1.HostPathDirectoryOrCreate, corev1.HostPathFile, corev1.HostPathFileOrCreate, corev1.HostPathSocket)
}

func (c *Checker) keyPaths(items []corev1.KeyToPath) {
	c.In("items")
	for i := range items {
		c.Index(i)
		c.requiredName("key", items[i].Key)
		c.requiredName("path", items[i].Path)
		c.localPath("path", items[i].Path)
		c.mode("mode", items[i].Mode)
		c.Out()
	}
	c.Out()
}

// downwardFile reports at its list, without an index, as Kubernetes does.
func (c *Checker) downwardFile(file *corev1.DownwardAPIVolumeFile) {
	c.requiredName("path", file.Path)
	c.localPath("path", file.Path)
	switch {
	case file.FieldRef != nil:
		c.In("fieldRef")
		c.fieldRef(file.FieldRef, fileFields)
		c.Out()
		if file.ResourceFieldRef != nil {
			c.Invalid("", "resource", "fieldRef and resourceFieldRef can not be specified simultaneously")
		}
	case file.ResourceFieldRef != nil:
		c.In("resourceFieldRef")
		c.resourceRef(file.ResourceFieldRef, true)
		c.Out()
	default:
		c.Required("", "one of fieldRef and resourceFieldRef is required")
	}
	c.mode("mode", file.Mode)
}

func (c *Checker) projected(v *corev1.ProjectedVolumeSource) {
	var paths check.Set
	for i := range v.Sources {
		p := projection{c: c, index: i, paths: &paths}
		p.files(&v.Sources[i])
		p.credentials(&v.Sources[i])
		if p.given > 1 {
			c.In("sources")
			c.Index(i)
			c.Forbidden("", "may not specify more than 1 volume type per source")
			c.Out()
			c.Out()
		}
	}
}

// projection is one source of a projected volume.
type projection struct {
	c     *Checker
	index int
	given int        // how many types of source it has
	paths *check.Set // of all sources before it too
}

// in steps into a type of source that is given.
func (p *projection) in(child string) {
	p.given++
	p.c.In("sources")
	p.c.Index(p.index)
	p.c.In(child)
}

func (p *projection) out() {
	p.c.Out()
	p.c.Out()
	p.c.Out()
}

// once reports a path, at the projected volume, that an earlier source has; culprit is the value to print.
func (p *projection) once(path, culprit string) {
	if path != "" && !p.paths.Add(path) {
		p.c.Invalid("", culprit, "conflicting duplicate paths")
	}
}

// files checks the sources that are objects of the API.
func (p *projection) files(s *corev1.VolumeProjection) {
	if s.Secret != nil {
		p.in("secret")
		p.c.requiredName("name", s.Secret.Name)
		p.c.keyPaths(s.Secret.Items)
		p.out()
		for _, item := range s.Secret.Items {
			p.once(item.Path, s.Secret.Name)
		}
	}
	if s.ConfigMap != nil {
		p.in("configMap")
		p.c.requiredName("name", s.ConfigMap.Name)
		p.c.keyPaths(s.ConfigMap.Items)
		p.out()
		for _, item := range s.ConfigMap.Items {
			p.once(item.Path, s.ConfigMap.Name)
		}
	}
	if s.DownwardAPI != nil {
		p.in("downwardAPI")
		for j := range s.DownwardAPI.Items {
			p.c.downwardFile(&s.DownwardAPI.Items[j])
		}
		p.out()
		for _, item := range s.DownwardAPI.Items {
			p.once(item.Path, item.Path)
		}
	}
}

// credentials checks the sources that the kubelet asks for.
func (p *projection) credentials(s *corev1.VolumeProjection) {
	if t := s.ServiceAccountToken; t != nil {
		p.in("serviceAccountToken")
		p.c.tokenSeconds(t)
		p.out()
		p.c.requiredName("path", t.Path)
		p.c.localPath("path", t.Path)
	}
	if b := s.ClusterTrustBundle; b != nil {
		p.in("clusterTrustBundle")
		p.c.trustBundle(b)
		p.out()
		if !p.paths.Add(b.Path) {
			p.c.Invalid("", b.Path, "conflicting duplicate paths")
		}
	}
	if pc := s.PodCertificate; pc != nil {
		p.in("podCertificate")
		p.c.podCertificate(pc)
		p.out()
		for _, path := range []string{pc.CredentialBundlePath, pc.KeyPath, pc.CertificateChainPath} {
			p.once(path, path)
		}
	}
}

func (c *Checker) tokenSeconds(t *corev1.ServiceAccountTokenProjection) {
	seconds := int64(0)
	if t.ExpirationSeconds != nil {
		seconds = *t.ExpirationSeconds
	}
	if seconds < 10*60 {
		c.Invalid("expirationSeconds", seconds, "may not specify a duration less than 10 minutes")
	}
	if seconds > 1<<32 {
		c.Invalid("expirationSeconds", seconds, "may not specify a duration larger than 2^32 seconds")
	}
}

func (c *Checker) trustBundle(projection *corev1.ClusterTrustBundleProjection) {
	switch {
	case projection.Name != nil && projection.SignerName != nil:
		c.Invalid("", *projection, "only one of name and signerName may be used")
	case projection.Name != nil:
		if *projection.Name == "" {
			c.Required("name", "must be a valid object name")
		}
		for _, m := range trustBundleName(*projection.Name) {
			c.Invalid("name", *projection.Name, "not a valid clustertrustbundlename: "+m)
		}
		if projection.LabelSelector != nil {
			c.Invalid("labelSelector", projection.LabelSelector, "labelSelector must be unset if name is specified")
		}
	case projection.SignerName != nil:
		if *projection.SignerName == "" {
			c.Required("signerName", "must be a valid signer name")
		}
		c.SignerName("signerName", *projection.SignerName)
		c.Selector("labelSelector", projection.LabelSelector)
	default:
		c.Required("", "either name or signerName must be specified")
	}
	c.requiredName("path", projection.Path)
	c.localPath("path", projection.Path)
}

// trustBundleName wants "<signer with / as :>:<name>", or a name without colon where the bundle has no signer.
func trustBundleName(name string) []string {
	if i := strings.LastIndexByte(name, ':'); i >= 0 {
		return apivalidation.NameIsDNSSubdomain(name[i+1:], false)
	}
	return apivalidation.NameIsDNSSubdomain(name, false)
}

// DriverName wants the name of a CSI driver.
func DriverName(l *check.List, child, name string) {
	if name == "" {
		l.Required(child, "")
		return
	}
	if len(name) > maxDriver {
		l.TooLong(child, maxDriver)
	}
	for _, m := range apivalidation.NameIsDNSSubdomain(strings.ToLower(name), false) {
		l.Invalid(child, name, m)
	}
}

const maxDriver = 63

func (c *Checker) csi(s *corev1.CSIVolumeSource) {
	DriverName(c.List, "driver", s.Driver)
	if r := s.NodePublishSecretRef; r != nil {
		if r.Name == "" {
			c.Required("nodePublishSecretRef.name", "")
		} else {
			c.Name("name", r.Name, apivalidation.NameIsDNSSubdomain)
		}
	}
}

// ephemeralName checks the name of the claim that the volume called name gets.
func (c *Checker) ephemeralName(name string) {
	if c.meta == nil || c.meta.Name == "" || name == "" {
		return
	}
	claim := c.meta.Name + "-" + name
	for _, m := range apivalidation.NameIsDNSSubdomain(claim, false) {
		c.Invalid("name", name, fmt.Sprintf("PVC name %q: %v", claim, m))
	}
}

func (c *Checker) ephemeralVolume(s *corev1.EphemeralVolumeSource) {
	template := s.VolumeClaimTemplate
	if template == nil {
		c.Required("volumeClaimTemplate", "")
		return
	}
	c.In("volumeClaimTemplate")
	c.In("metadata")
	c.Add(apivalidation.ValidateAnnotations(template.Annotations, c.Path("annotations"))...)
	c.Labels("labels", template.Labels)
	m := reflect.ValueOf(template.ObjectMeta)
	for i := range m.NumField() {
		if f := m.Type().Field(i); f.Name != "Annotations" && f.Name != "Labels" && !m.Field(i).IsZero() {
			c.Forbidden(strings.ToLower(f.Name[:1])+f.Name[1:], "cannot be set")
		}
	}
	c.Out()
	c.In("spec")
	ClaimSpec(c.List, &template.Spec)
	c.Out()
	c.Out()
}

// VolumeSource checks that v has one source and that it is right, where v is not a pod's.
func VolumeSource(l *check.List, v *corev1.Volume) { (&Checker{List: l}).volumeSource(v) }

// NoBacksteps wants a path without "..".
func NoBacksteps(l *check.List, child, p string) { (&Checker{List: l}).noBacksteps(child, p) }

// ClaimSpec checks what a persistent volume claim needs to be created at all.
func ClaimSpec(errs *check.List, spec *corev1.PersistentVolumeClaimSpec) {
	modes := []corev1.PersistentVolumeAccessMode{
		corev1.ReadOnlyMany, corev1.ReadWriteMany, corev1.ReadWriteOnce, corev1.ReadWriteOncePod,
	}
	if len(spec.AccessModes) == 0 {
		errs.Required("accessModes", "at least 1 access mode is required")
	}
	errs.Selector("selector", spec.Selector)
	for _, m := range spec.AccessModes {
		if !slices.Contains(modes, m) {
			check.NotSupported(errs, "accessModes", m, modes...)
		}
	}
	if len(spec.AccessModes) > 1 && slices.Contains(spec.AccessModes, corev1.ReadWriteOncePod) {
		errs.Forbidden("accessModes", "may not use ReadWriteOncePod with other access modes")
	}
	if size, ok := spec.Resources.Requests[corev1.ResourceStorage]; !ok {
		errs.In("resources")
		errs.Key(string(corev1.ResourceStorage))
		errs.Required("", "")
		errs.Out()
		errs.Out()
	} else if size.Sign() <= 0 {
		errs.In("resources")
		errs.Key(string(corev1.ResourceStorage))
		errs.Invalid("", size.String(), "must be greater than zero")
		errs.Out()
		errs.Out()
	}
	if spec.StorageClassName != nil && *spec.StorageClassName != "" {
		errs.Name("storageClassName", *spec.StorageClassName, apivalidation.NameIsDNSSubdomain)
	}
	check.Pointer(errs, "volumeMode", spec.VolumeMode, corev1.PersistentVolumeBlock, corev1.PersistentVolumeFilesystem)
	claimSources(errs, spec)
	if class := spec.VolumeAttributesClassName; class != nil && *class != "" {
		errs.Subdomain("volumeAttributesClassName", *class)
	}
}

// claimSources checks where a claim's volume takes its first contents from.
func claimSources(errs *check.List, spec *corev1.PersistentVolumeClaimSpec) {
	value := func(p *string) string {
		if p == nil {
			return ""
		}
		return *p
	}
	reference := func(group, kindName, name string) {
		if name == "" {
			errs.Required("name", "")
		}
		if kindName == "" {
			errs.Required("kind", "")
		}
		if group == "" && kindName != "PersistentVolumeClaim" {
			errs.Invalid("", kindName, "must be 'PersistentVolumeClaim' when referencing the default apiGroup")
		}
		if group != "" {
			errs.Subdomain("apiGroup", group)
		}
	}
	d := spec.DataSource
	ref := spec.DataSourceRef
	if d != nil {
		errs.Within("dataSource", func() { reference(value(d.APIGroup), d.Kind, d.Name) })
	}
	if ref == nil {
		return
	}
	errs.In("dataSourceRef")
	reference(value(ref.APIGroup), ref.Kind, ref.Name)
	foreign := value(ref.Namespace)
	if foreign != "" {
		errs.Name("namespace", foreign, apivalidation.ValidateNamespaceName)
	}
	errs.Out()
	none := struct{}{} // Kubernetes prints so what it means to be a path
	switch {
	case d == nil:
	case foreign != "":
		errs.Invalid("", none, "may not be specified when dataSourceRef.namespace is specified")
	case d.Kind != ref.Kind || d.Name != ref.Name || value(d.APIGroup) != value(ref.APIGroup):
		errs.Invalid("", none, "must match dataSourceRef")
	}
}
