// Prints what KubeVirt's operator installs for KubeVirt's own servers, as a List in JSON: the kinds, the accounts and
// rights, the webhooks, and the aggregated API; and the kind DataVolume of the Containerized Data Importer.
package main

import (
	"encoding/json"
	"log"
	"os"

	extensions "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"kubevirt.io/kubevirt/pkg/virt-operator/resource/generate/components"
	"kubevirt.io/kubevirt/pkg/virt-operator/resource/generate/rbac"
)

const namespace = "kubevirt"

var kinds = []func() (*extensions.CustomResourceDefinition, error){
	components.NewKubeVirtCrd,
	components.NewMigrationPolicyCrd,
	components.NewPresetCrd,
	components.NewReplicaSetCrd,
	components.NewVirtualMachineBackupCrd,
	components.NewVirtualMachineBackupTrackerCrd,
	components.NewVirtualMachineCloneCrd,
	components.NewVirtualMachineClusterInstancetypeCrd,
	components.NewVirtualMachineClusterPreferenceCrd,
	components.NewVirtualMachineCrd,
	components.NewVirtualMachineExportCrd,
	components.NewVirtualMachineInstanceCrd,
	components.NewVirtualMachineInstanceMigrationCrd,
	components.NewVirtualMachineInstancetypeCrd,
	components.NewVirtualMachinePoolCrd,
	components.NewVirtualMachinePreferenceCrd,
	components.NewVirtualMachineRestoreCrd,
	components.NewVirtualMachineSnapshotContentCrd,
	components.NewVirtualMachineSnapshotCrd,
}

func main() {
	var items []any
	for _, kind := range kinds {
		definition, err := kind()
		if err != nil {
			log.Fatal(err)
		}
		items = append(items, definition)
		if definition.Spec.Names.Kind == "VirtualMachine" {
			items = append(items, dataVolume(definition))
		}
	}
	for _, objects := range [][]runtime.Object{
		rbac.GetAllCluster(),
		rbac.GetAllApiServer(namespace),
		rbac.GetAllController(namespace, true),
		rbac.GetAllHandler(namespace),
	} {
		for _, object := range objects {
			items = append(items, object)
		}
	}
	items = append(items,
		components.NewVirtAPIMutatingWebhookConfiguration(namespace),
		components.NewVirtAPIValidatingWebhookConfiguration(namespace))
	for _, service := range components.NewVirtAPIAPIServices(namespace) {
		items = append(items, service)
	}
	list := map[string]any{"apiVersion": "v1", "kind": "List", "items": items}
	if err := json.NewEncoder(os.Stdout).Encode(list); err != nil {
		log.Fatal(err)
	}
}

// dataVolume takes the schema of a DataVolume's spec from the templates for DataVolumes in a VirtualMachine, where
// KubeVirt has generated it from the importer's types. Generating it here would double the time of the build.
func dataVolume(machine *extensions.CustomResourceDefinition) *extensions.CustomResourceDefinition {
	schema := machine.Spec.Versions[0].Schema.OpenAPIV3Schema
	templates := schema.Properties["spec"].Properties["dataVolumeTemplates"]
	spec := templates.Items.Schema.Properties["spec"]
	anything := true
	return &extensions.CustomResourceDefinition{
		TypeMeta:   machine.TypeMeta,
		ObjectMeta: meta.ObjectMeta{Name: "datavolumes.cdi.kubevirt.io"},
		Spec: extensions.CustomResourceDefinitionSpec{
			Group: "cdi.kubevirt.io",
			Scope: extensions.NamespaceScoped,
			Names: extensions.CustomResourceDefinitionNames{
				Kind: "DataVolume", ListKind: "DataVolumeList", Plural: "datavolumes", Singular: "datavolume",
				ShortNames: []string{"dv", "dvs"},
			},
			Versions: []extensions.CustomResourceDefinitionVersion{{
				Name: "v1beta1", Served: true, Storage: true,
				Subresources: &extensions.CustomResourceSubresources{Status: &extensions.CustomResourceSubresourceStatus{}},
				Schema: &extensions.CustomResourceValidation{OpenAPIV3Schema: &extensions.JSONSchemaProps{
					Type:     "object",
					Required: []string{"spec"},
					Properties: map[string]extensions.JSONSchemaProps{
						"apiVersion": {Type: "string"},
						"kind":       {Type: "string"},
						"metadata":   {Type: "object"},
						"spec":       spec,
						"status":     {Type: "object", XPreserveUnknownFields: &anything},
					},
				}},
			}},
		},
	}
}
