// A CSI driver for tests, without a node: a volume is a folder with a file, and a snapshot is a copy of it. Which volumes
// and snapshots there are, and what is in them, can be seen in its folder; and a test can order there what goes wrong.
//
//	volumes/<volume>/disk         what is on it, of which nothing but the test knows
//	volumes/<volume>/about        how large it is, as JSON
//	snapshots/<snapshot>/...      the same, with what it is a snapshot of
//	orders/<namespace>            what is to happen to snapshots of this namespace, see below
package main

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"log"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

const name = "folders.example.com"

// What a test can order.
const (
	// The storage refuses to make a snapshot.
	refuse = "refuse"
	// It takes as long as this is ordered to cut one.
	dawdle = "dawdle"
	// It cuts snapshots, and they are not ready as long as this is ordered.
	upload = "upload"
	// It keeps those that are deleted.
	hold = "hold"
)

// Where csi-snapshotter says whose snapshot it is.
const namespaceOfSnapshot = "csi.storage.k8s.io/volumesnapshot/namespace"

// about is what the driver notes of a volume or a snapshot.
type about struct {
	Bytes int64 `json:"bytes"`
	// Of a snapshot:
	Volume    string    `json:"volume,omitempty"`
	Namespace string    `json:"namespace,omitempty"`
	Cut       time.Time `json:"cut,omitzero"`
}

type driver struct {
	csi.UnimplementedIdentityServer
	csi.UnimplementedControllerServer
	folder string
}

func main() {
	if len(os.Args) != 3 {
		log.Fatal("usage: csi-driver SOCKET FOLDER")
	}
	d := &driver{folder: os.Args[2]}
	for _, kind := range []string{"volumes", "snapshots", "orders"} {
		if err := os.MkdirAll(filepath.Join(d.folder, kind), 0o700); err != nil {
			log.Fatal(err)
		}
	}
	listener, err := net.Listen("unix", os.Args[1])
	if err != nil {
		log.Fatal(err)
	}
	server := grpc.NewServer()
	csi.RegisterIdentityServer(server, d)
	csi.RegisterControllerServer(server, d)
	log.Fatal(server.Serve(listener))
}

func (d *driver) GetPluginInfo(context.Context, *csi.GetPluginInfoRequest) (*csi.GetPluginInfoResponse, error) {
	return &csi.GetPluginInfoResponse{Name: name, VendorVersion: "1"}, nil
}

func (d *driver) GetPluginCapabilities(context.Context, *csi.GetPluginCapabilitiesRequest) (*csi.GetPluginCapabilitiesResponse, error) {
	service := &csi.PluginCapability_Service{Type: csi.PluginCapability_Service_CONTROLLER_SERVICE}
	capability := &csi.PluginCapability{Type: &csi.PluginCapability_Service_{Service: service}}
	return &csi.GetPluginCapabilitiesResponse{Capabilities: []*csi.PluginCapability{capability}}, nil
}

func (d *driver) Probe(context.Context, *csi.ProbeRequest) (*csi.ProbeResponse, error) {
	return &csi.ProbeResponse{Ready: wrapperspb.Bool(true)}, nil
}

func (d *driver) ControllerGetCapabilities(context.Context, *csi.ControllerGetCapabilitiesRequest) (*csi.ControllerGetCapabilitiesResponse, error) {
	var all []*csi.ControllerServiceCapability
	for _, it := range []csi.ControllerServiceCapability_RPC_Type{
		csi.ControllerServiceCapability_RPC_CREATE_DELETE_VOLUME,
		csi.ControllerServiceCapability_RPC_CREATE_DELETE_SNAPSHOT,
	} {
		rpc := &csi.ControllerServiceCapability_RPC{Type: it}
		all = append(all, &csi.ControllerServiceCapability{Type: &csi.ControllerServiceCapability_Rpc{Rpc: rpc}})
	}
	return &csi.ControllerGetCapabilitiesResponse{Capabilities: all}, nil
}

func (d *driver) CreateVolume(_ context.Context, request *csi.CreateVolumeRequest) (*csi.CreateVolumeResponse, error) {
	volume, err := d.path("volumes", request.GetName())
	if err != nil {
		return nil, err
	}
	wanted := about{Bytes: request.GetCapacityRange().GetRequiredBytes()}
	source := request.GetVolumeContentSource()
	from := ""
	if source != nil {
		if from, err = d.path("snapshots", source.GetSnapshot().GetSnapshotId()); err != nil {
			return nil, err
		}
		found, err := read(from)
		if err != nil {
			return nil, failure(err)
		}
		if wanted.Bytes < found.Bytes {
			return nil, status.Error(codes.OutOfRange, "the volume is smaller than its snapshot")
		}
	}
	if err := write(volume, from, wanted); err != nil {
		return nil, failure(err)
	}
	return &csi.CreateVolumeResponse{Volume: &csi.Volume{
		VolumeId: request.GetName(), CapacityBytes: wanted.Bytes, ContentSource: source,
	}}, nil
}

func (d *driver) DeleteVolume(_ context.Context, request *csi.DeleteVolumeRequest) (*csi.DeleteVolumeResponse, error) {
	volume, err := d.path("volumes", request.GetVolumeId())
	if err == nil {
		err = failure(os.RemoveAll(volume))
	}
	return &csi.DeleteVolumeResponse{}, err
}

func (d *driver) CreateSnapshot(ctx context.Context, request *csi.CreateSnapshotRequest) (*csi.CreateSnapshotResponse, error) {
	snapshot, err := d.path("snapshots", request.GetName())
	if err != nil {
		return nil, err
	}
	volume, err := d.path("volumes", request.GetSourceVolumeId())
	if err != nil {
		return nil, err
	}
	namespace := request.GetParameters()[namespaceOfSnapshot]
	for d.order(namespace) == dawdle {
		select {
		case <-ctx.Done():
			return nil, status.FromContextError(ctx.Err()).Err()
		case <-time.After(20 * time.Millisecond):
		}
	}
	order := d.order(namespace)
	if order == refuse {
		return nil, status.Error(codes.ResourceExhausted, "no space left in the pool")
	}
	made, err := read(snapshot)
	if errors.Is(err, fs.ErrNotExist) {
		if made, err = read(volume); err != nil {
			return nil, failure(err)
		}
		made = about{made.Bytes, request.GetSourceVolumeId(), namespace, time.Now()}
		err = write(snapshot, volume, made)
	}
	if err != nil {
		return nil, failure(err)
	}
	return &csi.CreateSnapshotResponse{Snapshot: &csi.Snapshot{
		SnapshotId: request.GetName(), SourceVolumeId: made.Volume, SizeBytes: made.Bytes,
		CreationTime: timestamppb.New(made.Cut), ReadyToUse: order != upload,
	}}, nil
}

func (d *driver) DeleteSnapshot(_ context.Context, request *csi.DeleteSnapshotRequest) (*csi.DeleteSnapshotResponse, error) {
	snapshot, err := d.path("snapshots", request.GetSnapshotId())
	if err != nil {
		return nil, err
	}
	found, err := read(snapshot)
	if errors.Is(err, fs.ErrNotExist) {
		return &csi.DeleteSnapshotResponse{}, nil
	}
	if err != nil {
		return nil, failure(err)
	}
	if d.order(found.Namespace) == hold {
		return nil, status.Error(codes.Unavailable, "the backup target is offline")
	}
	return &csi.DeleteSnapshotResponse{}, failure(os.RemoveAll(snapshot))
}

// path refuses what would lead out of the folder.
func (d *driver) path(kind, id string) (string, error) {
	if id == "" || strings.ContainsAny(id, "/.") {
		return "", status.Errorf(codes.InvalidArgument, "%q cannot be the name of a folder", id)
	}
	return filepath.Join(d.folder, kind, id), nil
}

func (d *driver) order(namespace string) string {
	order, err := os.ReadFile(filepath.Join(d.folder, "orders", filepath.Base(namespace)))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		log.Print(err)
	}
	return string(order)
}

func read(folder string) (it about, err error) {
	text, err := os.ReadFile(filepath.Join(folder, "about"))
	if err == nil {
		err = json.Unmarshal(text, &it)
	}
	return it, err
}

// write makes a folder with what is in another one, or an empty file, at once: whoever sees it sees all of it. One that is
// there is kept, since every call may be made twice.
func write(folder, from string, it about) error {
	if _, err := os.Stat(folder); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	text, err := json.Marshal(it)
	if err != nil {
		return err
	}
	var disk []byte
	if from != "" {
		if disk, err = os.ReadFile(filepath.Join(from, "disk")); err != nil {
			return err
		}
	}
	parent := filepath.Dir(folder)
	unfinished, err := os.MkdirTemp(parent, ".unfinished-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(unfinished)
	for file, content := range map[string][]byte{"about": text, "disk": disk} {
		if err := os.WriteFile(filepath.Join(unfinished, file), content, 0o600); err != nil {
			return err
		}
	}
	return os.Rename(unfinished, folder)
}

func failure(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, fs.ErrNotExist):
		return status.Error(codes.NotFound, err.Error())
	default:
		return status.Error(codes.Internal, err.Error())
	}
}
