// SPDX-License-Identifier: Apache-2.0

// Package archive reads images from tar archives: OCI image layouts and the output of docker save. It makes the plans
// of the images that are in one and opens their layers. runtime/image calls it. It extracts no file under the name that
// the archive gives it.
package archive
