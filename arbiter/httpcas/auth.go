package httpcas

import "encoding/base64"

// Basic and Bearer are the values of an Authorization header (RFC 7617, 6750).
func Basic(user, password string) string {
	return "Basic " + base64.StdEncoding.EncodeToString([]byte(user+":"+password))
}

// Bearer is Basic's sister for a token.
func Bearer(token string) string { return "Bearer " + token }
