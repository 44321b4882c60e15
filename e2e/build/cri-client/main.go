// Runs containers in one pod of a container runtime, one after the other, and prints of each how long its creation took
// and how its program ended: one line of JSON with the seconds and the exit code. For e2e/bench/cpuset_latency.py, which
// needs a thousand containers and no kubelet.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

type settings struct {
	socket, image, cgroup, uid, asked, command string
	count                                      int
}

type result struct {
	Created float64 `json:"created"`
	Exit    int32   `json:"exit"`
}

type runner struct {
	settings
	runtime cri.RuntimeServiceClient
	pod     *cri.PodSandboxConfig
	sandbox string
}

func main() {
	var s settings
	flag.StringVar(&s.socket, "socket", "", "of the runtime")
	flag.StringVar(&s.image, "image", "", "that the runtime has")
	flag.StringVar(&s.cgroup, "cgroup", "", "the pod's cgroup, which exists")
	flag.StringVar(&s.uid, "uid", "", "of the pod")
	flag.StringVar(&s.asked, "cpus", "", "that kubelet would ask for")
	flag.StringVar(&s.command, "command", "", "of each container, for its shell")
	flag.IntVar(&s.count, "count", 1, "containers to run")
	flag.Parse()
	if err := run(s); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(s settings) error {
	connection, err := grpc.NewClient("unix://"+s.socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer connection.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Minute)
	defer cancel()
	r := runner{settings: s, runtime: cri.NewRuntimeServiceClient(connection)}
	if err := r.startPod(ctx); err != nil {
		return fmt.Errorf("the pod: %w", err)
	}
	defer r.runtime.RemovePodSandbox(ctx, &cri.RemovePodSandboxRequest{PodSandboxId: r.sandbox})
	output := json.NewEncoder(os.Stdout)
	for number := range s.count {
		one, err := r.runContainer(ctx, uint32(number))
		if err != nil {
			return fmt.Errorf("container %d: %w", number, err)
		}
		if err := output.Encode(one); err != nil {
			return err
		}
	}
	return nil
}

func (r *runner) startPod(ctx context.Context) error {
	host := &cri.NamespaceOption{Network: cri.NamespaceMode_NODE}
	r.pod = &cri.PodSandboxConfig{
		Metadata: &cri.PodSandboxMetadata{Name: "bench", Namespace: "bench", Uid: r.uid},
		Linux: &cri.LinuxPodSandboxConfig{
			CgroupParent:    r.cgroup,
			SecurityContext: &cri.LinuxSandboxSecurityContext{NamespaceOptions: host},
		},
	}
	started, err := r.runtime.RunPodSandbox(ctx, &cri.RunPodSandboxRequest{Config: r.pod})
	if err == nil {
		r.sandbox = started.PodSandboxId
	}
	return err
}

func (r *runner) runContainer(ctx context.Context, attempt uint32) (result, error) {
	config := &cri.ContainerConfig{
		Metadata: &cri.ContainerMetadata{Name: "main", Attempt: attempt},
		Image:    &cri.ImageSpec{Image: r.image},
		Command:  []string{"sh", "-c", r.command},
		Linux:    &cri.LinuxContainerConfig{Resources: &cri.LinuxContainerResources{CpusetCpus: r.asked}},
	}
	began := time.Now()
	created, err := r.runtime.CreateContainer(ctx, &cri.CreateContainerRequest{
		PodSandboxId: r.sandbox, Config: config, SandboxConfig: r.pod,
	})
	if err != nil {
		return result{}, err
	}
	took := time.Since(began).Seconds()
	id := created.ContainerId
	if _, err := r.runtime.StartContainer(ctx, &cri.StartContainerRequest{ContainerId: id}); err != nil {
		return result{}, err
	}
	for {
		found, err := r.runtime.ContainerStatus(ctx, &cri.ContainerStatusRequest{ContainerId: id})
		if err != nil {
			return result{}, err
		}
		if found.Status.State == cri.ContainerState_CONTAINER_EXITED {
			_, err := r.runtime.RemoveContainer(ctx, &cri.RemoveContainerRequest{ContainerId: id})
			return result{Created: took, Exit: found.Status.ExitCode}, err
		}
		time.Sleep(2 * time.Millisecond)
	}
}
