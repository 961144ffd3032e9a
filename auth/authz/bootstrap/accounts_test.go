// SPDX-License-Identifier: Apache-2.0

package bootstrap_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"strconv"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"

	"keelson/api/gates"
	"keelson/auth/authz/bootstrap"
)

// TestControllersHaveRules: the service account of each controller in controllers/table.go has a role, and a binding to
// it. See docs/checklists/controller.md.
func TestControllersHaveRules(t *testing.T) {
	bound := map[string]string{} // role by account
	bind := func(role rbacv1.RoleRef, subjects []rbacv1.Subject) {
		for _, s := range subjects {
			if s.Kind == rbacv1.ServiceAccountKind && s.Namespace == "kube-system" {
				bound[s.Name] = role.Name
			}
		}
	}
	for _, obj := range bootstrap.Policy(gates.All()) {
		switch b := obj.(type) {
		case *rbacv1.ClusterRoleBinding:
			bind(b.RoleRef, b.Subjects)
		case *rbacv1.RoleBinding: // of controllers that work in one namespace
			bind(b.RoleRef, b.Subjects)
		}
	}
	accounts := controllerAccounts(t)
	if len(accounts) < 30 {
		t.Fatalf("found %d controllers in controllers/table.go, want all", len(accounts))
	}
	for _, account := range accounts {
		if want := "system:controller:" + account; bound[account] != want {
			t.Errorf("the service account %s is bound to %q, want %s: add its rules to controllers.go",
				account, bound[account], want)
		}
	}
}

// controllerAccounts reads the service accounts from the rows of the table, except those of controllers that work with
// the manager's identity.
func controllerAccounts(t *testing.T) []string {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), "../../../controllers/table.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	var accounts []string
	ast.Inspect(file, func(n ast.Node) bool {
		row, ok := n.(*ast.CompositeLit)
		if !ok {
			return true
		}
		fields := map[string]string{}
		for _, element := range row.Elts {
			pair, ok := element.(*ast.KeyValueExpr)
			if !ok {
				continue
			}
			key, _ := pair.Key.(*ast.Ident)
			switch value := pair.Value.(type) {
			case *ast.BasicLit:
				fields[key.Name], _ = strconv.Unquote(value.Value)
			case *ast.Ident:
				fields[key.Name] = value.Name
			}
		}
		account := fields["account"]
		if account == "" {
			account = fields["name"]
		}
		if account != "" && fields["useManagerIdentity"] != "true" {
			accounts = append(accounts, account)
		}
		return true
	})
	return accounts
}
