// SPDX-License-Identifier: Apache-2.0

package authn

import (
	"crypto/sha256"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"

	"keelson/auth"
)

// TokenFile authenticates by the static bearer tokens of a file (kube-apiserver's --token-auth-file).
type TokenFile struct {
	// users by the hash of their token, so that the time of a lookup does not depend on the token.
	users map[[sha256.Size]byte]*auth.User
}

// LoadTokenFile reads the CSV file at path: token, user name, user UID and optional groups, quoted if there are
// several. The last line of a repeated token counts.
func LoadTokenFile(path string) (*TokenFile, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("read token file: %w", err)
	}
	defer func() { _ = f.Close() }()
	tokenFile := &TokenFile{users: map[[sha256.Size]byte]*auth.User{}}
	lines := csv.NewReader(f)
	lines.FieldsPerRecord = -1
	for {
		line, err := lines.Read()
		if errors.Is(err, io.EOF) {
			return tokenFile, nil
		}
		if err != nil {
			return nil, fmt.Errorf("token file %s: %w", path, err)
		}
		if len(line) < 3 {
			return nil, fmt.Errorf(
				"token file '%s' must have at least 3 columns (token, user name, user uid), found %d", path, len(line))
		}
		if line[0] == "" {
			continue
		}
		u := &auth.User{Name: line[1], UID: line[2], How: "token file"}
		if len(line) > 3 {
			u.Groups = strings.Split(line[3], ",")
		}
		tokenFile.users[sha256.Sum256([]byte(line[0]))] = WithAuthenticated(u)
	}
}

// Authenticate handles the tokens of the file.
func (t *TokenFile) Authenticate(r *http.Request) (*auth.User, bool, error) {
	token := Bearer(r)
	if token == "" {
		return nil, false, nil
	}
	u, ok := t.users[sha256.Sum256([]byte(token))]
	return u, ok, nil
}
