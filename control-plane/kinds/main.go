// Prints the kinds of external-snapshotter, and those of kube-ovn that private networks are made of, as the files of their Go modules
// have them.
package main

import (
	"encoding/json"
	"fmt"
	"log"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// sources says which files of which module, and which of the kinds there; all of them if none is named.
var sources = []struct {
	module, files string
	kinds         []string
}{
	{"github.com/kubernetes-csi/external-snapshotter/client/v8", "config/crd/snapshot.storage.k8s.io_*.yaml", nil},
	{"github.com/kubeovn/kube-ovn", "charts/kube-ovn-v2/crds/*.yaml", []string{"vpcs.kubeovn.io", "subnets.kubeovn.io"}},
}

func main() {
	for _, source := range sources {
		files, err := filepath.Glob(filepath.Join(folder(source.module), source.files))
		if err != nil || len(files) == 0 {
			log.Fatal("there are no kinds in ", source.module, err)
		}
		for _, file := range files {
			text, err := os.ReadFile(file)
			if err != nil {
				log.Fatal(err)
			}
			for _, document := range strings.Split(string(text), "\n---\n") {
				if isOneOf(document, source.kinds) {
					fmt.Printf("---\n%s\n", document)
				}
			}
		}
	}
}

func folder(module string) string {
	command := exec.Command("go", "mod", "download", "-json", module)
	command.Stderr = os.Stderr
	answer, err := command.Output()
	if err != nil {
		log.Fatal(err)
	}
	var downloaded struct{ Dir string }
	if err := json.Unmarshal(answer, &downloaded); err != nil {
		log.Fatal(err)
	}
	return downloaded.Dir
}

func isOneOf(document string, kinds []string) bool {
	for _, kind := range kinds {
		if strings.Contains(document, "\n  name: "+kind+"\n") {
			return true
		}
	}
	return kinds == nil
}
