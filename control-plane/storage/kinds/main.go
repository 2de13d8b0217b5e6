// Prints the kinds of external-snapshotter, as the files of its Go module have them.
package main

import (
	"encoding/json"
	"fmt"
	"log"
	"os"
	"os/exec"
	"path/filepath"
)

const module = "github.com/kubernetes-csi/external-snapshotter/client/v8"

func main() {
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
	files, err := filepath.Glob(filepath.Join(downloaded.Dir, "config/crd/snapshot.storage.k8s.io_*.yaml"))
	if err != nil || len(files) == 0 {
		log.Fatal("there are no kinds in ", downloaded.Dir, err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			log.Fatal(err)
		}
		fmt.Printf("---\n%s\n", text)
	}
}
