// SPDX-License-Identifier: Apache-2.0

// Package aggregate lets other servers answer for parts of the API. An
// APIService names a group version and the service behind which its server is;
// requests for that group version are passed on with the user's name in headers
// and a client certificate that vouches for them. It also keeps an APIService
// for every group version that this server answers for itself. The server feeds
// it APIServices and asks it about every request; discovery and OpenAPI publish
// what it found out. It authorizes nobody.
package aggregate
