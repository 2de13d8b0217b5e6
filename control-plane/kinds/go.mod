module kinds

go 1.26.0

require (
	github.com/kubeovn/kube-ovn v1.14.10
	github.com/kubernetes-csi/external-snapshotter/client/v8 v8.7.0
)
