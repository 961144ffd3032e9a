// SPDX-License-Identifier: Apache-2.0

package options

import (
	"crypto/tls"
	"fmt"

	"keelson/lib/option"
)

// curves are the key exchanges that Go's TLS knows.
var curves = map[tls.CurveID]bool{
	tls.CurveP256:          true,
	tls.CurveP384:          true,
	tls.CurveP521:          true,
	tls.X25519:             true,
	tls.X25519MLKEM768:     true,
	tls.SecP256r1MLKEM768:  true,
	tls.SecP384r1MLKEM1024: true,
}

// CurvesRow is the option --tls-curve-preferences.
func CurvesRow(ids *[]int32) option.Row {
	return option.New(ids, "tls-curve-preferences", nil, "key exchanges that the server takes, by their `NUMBERS` in "+
		"TLS: 23 (P-256), 24 (P-384), 25 (P-521), 29 (X25519), 4588 (X25519MLKEM768) and others (default: all that Go "+
		"takes)")
}

// CurveIDs returns the key exchanges of --tls-curve-preferences.
func CurveIDs(ids []int32) ([]tls.CurveID, error) {
	var out []tls.CurveID
	for _, id := range ids {
		if id < 0 || id > 1<<16-1 || !curves[tls.CurveID(id)] {
			return nil, fmt.Errorf("--tls-curve-preferences: %d is unknown: use 23, 24, 25, 29 or 4588", id)
		}
		out = append(out, tls.CurveID(id))
	}
	return out, nil
}
