//go:build tools

package conformance

import (
	_ "k8s.io/kubernetes/test/images/agnhost"
)
