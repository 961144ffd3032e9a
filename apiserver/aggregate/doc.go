// SPDX-License-Identifier: Apache-2.0

// Package aggregate implements the aggregation layer. An APIService names a group version and the Service of the server
// that serves it; requests for that group version are proxied with the user's name in headers and a client certificate
// that proves where they come from. It also maintains an APIService for every group version that this server serves
// itself. The API server passes it the APIServices and asks it about every request; discovery and OpenAPI publish what
// it finds. It never authorizes a request.
package aggregate
