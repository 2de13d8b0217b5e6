//! The node: binds and runs the launchers' Pods as scheduler and kubelet do, and their guests as virt-handler does.

use std::{sync::Arc, time::Duration, time::Instant};

use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api, ResourceExt as _,
    api::{DeleteParams, DynamicObject, Patch, PatchParams, PostParams, Preconditions},
    runtime::controller::Action,
};
use serde_json::{Value, json};

use super::{super::kinds, Boot, Context, End, Guest, NODE, now};

const SUCCEEDED: &str = "Succeeded";
const FAILED: &str = "Failed";

/// Takes one run a step further.
pub(super) async fn play(run: Arc<DynamicObject>, context: Arc<Context>) -> Result<Action, kube::Error> {
    let step = Step::of(&run, &context);
    let Some(pod) = step.pod() else {
        return Ok(Action::await_change());
    };
    if step.guest.is_lost {
        step.set_ready(&pod, false).await?;
        return Ok(Action::await_change());
    }
    let is_leaving = pod.metadata.deletion_timestamp.is_some();
    match step.phase() {
        "Scheduled" | "Running" => return step.go_on(&pod).await,
        SUCCEEDED | FAILED if !is_leaving => step.finish(&pod).await?,
        _ if is_leaving => step.remove(&pod).await?,
        _ => step.start(&pod).await?,
    }
    Ok(Action::await_change())
}

struct Step<'a> {
    run: &'a DynamicObject,
    context: &'a Context,
    key: (String, String),
    guest: Guest,
}

impl<'a> Step<'a> {
    fn of(run: &'a DynamicObject, context: &'a Context) -> Self {
        let key = (run.namespace().unwrap_or_default(), run.name_any());
        let guest = context.stage.guests.lock().get(&key).cloned().unwrap_or_default();
        Self {
            run,
            context,
            key,
            guest,
        }
    }

    fn phase(&self) -> &str {
        self.run.data["status"]["phase"].as_str().unwrap_or_default()
    }

    /// The run's Pod; one that is being deleted only if there is no other.
    fn pod(&self) -> Option<Arc<Pod>> {
        let pods = self.context.pods.state();
        let own = pods.into_iter().filter(|pod| {
            let mut owners = pod.owner_references().iter();
            owners.any(|owner| Some(&owner.uid) == self.run.metadata.uid.as_ref())
        });
        own.min_by_key(|pod| pod.metadata.deletion_timestamp.is_some())
    }

    fn pods(&self) -> Api<Pod> {
        Api::namespaced(self.context.client.clone(), &self.key.0)
    }

    async fn set_status(&self, pod: &Pod, status: Value) -> Result<(), kube::Error> {
        let change = json!({
            "metadata": {"uid": pod.metadata.uid, "resourceVersion": pod.metadata.resource_version}, "status": status,
        });
        let (name, params) = (pod.name_any(), PatchParams::default());
        self.pods()
            .patch_status(&name, &params, &Patch::Merge(change))
            .await?;
        Ok(())
    }

    /// Scheduler and kubelet: binds the Pod and runs its containers, or says why not.
    async fn start(&self, pod: &Pod) -> Result<(), kube::Error> {
        let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
        if phase == Some("Running") {
            return Ok(());
        }
        if self.guest.boot == Boot::FindsNoNode {
            let condition = |condition: &&k8s_openapi::api::core::v1::PodCondition| {
                condition.type_ == "PodScheduled" && condition.status == "False"
            };
            let conditions = pod.status.as_ref().and_then(|status| status.conditions.as_ref());
            if conditions.into_iter().flatten().find(condition).is_some() {
                return Ok(());
            }
            let status = json!({"conditions": [{
                "type": "PodScheduled", "status": "False", "reason": "Unschedulable", "lastTransitionTime": now(),
                "message": format!("0/1 nodes are available: 1 Insufficient memory ({NODE})."),
            }]});
            return self.set_status(pod, status).await;
        }
        let is_bound = pod.spec.as_ref().is_some_and(|spec| spec.node_name.is_some());
        if !is_bound {
            let binding = json!({
                "apiVersion": "v1", "kind": "Binding", "metadata": {"name": pod.name_any(), "uid": pod.metadata.uid},
                "target": {"apiVersion": "v1", "kind": "Node", "name": NODE},
            });
            let (name, params) = (pod.name_any(), PostParams::default());
            self.pods()
                .create_subresource::<Value, Value>("binding", &name, &params, &binding)
                .await?;
            // The change of the Pod brings the next step.
            return Ok(());
        }
        let has_image = self.guest.boot != Boot::FindsNoImage;
        let image_is_missing = pod.status.as_ref().is_some_and(|status| {
            let containers = status.container_statuses.iter().flatten();
            containers
                .filter_map(|it| it.state.as_ref())
                .any(|it| it.waiting.is_some())
        });
        if !has_image && image_is_missing {
            return Ok(());
        }
        let state = if has_image {
            json!({"running": {"startedAt": now()}})
        } else {
            json!({"waiting": {"reason": "ErrImagePull", "message": "failed to pull the image virt-launcher"}})
        };
        let containers = pod.spec.iter().flat_map(|spec| &spec.containers);
        let containers: Vec<Value> = containers
            .map(|container| {
                json!({
                    "name": container.name, "image": container.image, "imageID": "", "restartCount": 0,
                    "ready": has_image, "started": has_image, "state": state,
                })
            })
            .collect();
        let address = address(pod);
        let conditions = ["PodScheduled", "Initialized", "ContainersReady", "Ready"];
        let conditions = conditions.map(|kind| {
            let holds = has_image || kind == "PodScheduled";
            json!({"type": kind, "status": if holds { "True" } else { "False" }, "lastTransitionTime": now()})
        });
        let status = json!({
            "phase": if has_image { "Running" } else { "Pending" },
            "hostIP": "10.1.0.1", "podIP": address, "podIPs": [{"ip": address}], "startTime": now(),
            "containerStatuses": containers,
            "conditions": conditions,
        });
        self.set_status(pod, status).await
    }

    async fn set_ready(&self, pod: &Pod, ready: bool) -> Result<(), kube::Error> {
        let conditions = pod.status.as_ref().and_then(|status| status.conditions.clone());
        let mut conditions = conditions.unwrap_or_default();
        let status = if ready { "True" } else { "False" };
        match conditions.iter_mut().find(|condition| condition.type_ == "Ready") {
            Some(condition) if condition.status != status => status.clone_into(&mut condition.status),
            _ => return Ok(()),
        }
        self.set_status(pod, json!({"conditions": conditions})).await
    }

    /// The launcher has ended by itself.
    async fn finish(&self, pod: &Pod) -> Result<(), kube::Error> {
        let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
        if phase != Some("Running") {
            return Ok(());
        }
        let containers = pod
            .status
            .iter()
            .flat_map(|status| &status.container_statuses)
            .flatten();
        let containers: Vec<Value> = containers
            .map(|container| {
                let mut container = json!(container);
                container["ready"] = false.into();
                container["started"] = false.into();
                container["state"] =
                    json!({"terminated": {"exitCode": 0, "reason": "Completed", "finishedAt": now()}});
                container
            })
            .collect();
        let status = json!({"phase": "Succeeded", "containerStatuses": containers});
        self.set_status(pod, status).await
    }

    /// The kubelet has ended a Pod that is being deleted.
    async fn remove(&self, pod: &Pod) -> Result<(), kube::Error> {
        let params = DeleteParams {
            grace_period_seconds: Some(0),
            preconditions: Some(Preconditions {
                uid: pod.metadata.uid.clone(),
                resource_version: None,
            }),
            ..DeleteParams::default()
        };
        self.pods().delete(&pod.name_any(), &params).await?;
        Ok(())
    }

    /// virt-handler: starts the guest, and ends it when it should.
    async fn go_on(&self, pod: &Pod) -> Result<Action, kube::Error> {
        self.set_ready(pod, true).await?;
        let is_running = self.phase() == "Running";
        if is_running && let Some(end) = self.guest.ends {
            self.end(if end == End::ShutsDown { SUCCEEDED } else { FAILED })
                .await?;
            let mut guests = self.context.stage.guests.lock();
            guests.entry(self.key.clone()).or_default().ends = None;
            return Ok(Action::await_change());
        }
        let is_leaving = pod.metadata.deletion_timestamp.is_some();
        if self.run.metadata.deletion_timestamp.is_some() || is_leaving {
            return self.shut_down(pod, is_running).await;
        }
        if is_running {
            self.set_conditions().await?;
            return Ok(Action::await_change());
        }
        match self.guest.boot {
            Boot::Waits => {}
            Boot::Crashes => self.end(FAILED).await?,
            _ => self.boot(pod).await?,
        }
        Ok(Action::await_change())
    }

    async fn shut_down(&self, pod: &Pod, is_running: bool) -> Result<Action, kube::Error> {
        let of_the_run = self.run.data["spec"]["terminationGracePeriodSeconds"].as_u64();
        let of_the_pod = pod.metadata.deletion_grace_period_seconds;
        let grace = if self.run.metadata.deletion_timestamp.is_some() {
            of_the_run.unwrap_or(30)
        } else {
            of_the_pod
                .and_then(|seconds| u64::try_from(seconds).ok())
                .unwrap_or(30)
        };
        let grace = Duration::from_secs(grace);
        let takes = self.guest.shutdown_takes;
        let (after, end) = if grace.is_zero() {
            (Duration::ZERO, SUCCEEDED)
        } else if !is_running {
            // There is no guest yet: the launcher is killed.
            (Duration::ZERO, FAILED)
        } else if self.guest.is_deaf || takes > grace {
            (grace, FAILED)
        } else {
            (takes, SUCCEEDED)
        };
        let uid = self.run.uid().unwrap_or_default();
        let asked = *self
            .context
            .stage
            .asked
            .lock()
            .entry(uid)
            .or_insert_with(Instant::now);
        let left = after.saturating_sub(asked.elapsed());
        if left.is_zero() {
            self.end(end).await?;
            Ok(Action::await_change())
        } else {
            Ok(Action::requeue(left))
        }
    }

    async fn boot(&self, pod: &Pod) -> Result<(), kube::Error> {
        let spec = &self.run.data["spec"];
        let is_of_the_pod = |name: &Value| {
            let networks = spec["networks"].as_array().into_iter().flatten();
            networks
                .filter(|network| &network["name"] == name)
                .any(|network| network["pod"].is_object())
        };
        let interfaces = spec["domain"]["devices"]["interfaces"].as_array();
        let interfaces: Vec<Value> = interfaces
            .into_iter()
            .flatten()
            .map(|interface| {
                let name = &interface["name"];
                let mac = interface["macAddress"].as_str().unwrap_or("02:00:00:00:00:01");
                let mut status = json!({"name": name, "mac": mac, "infoSource": "domain", "queueCount": 1});
                if is_of_the_pod(name) {
                    let address = address(pod);
                    status["ipAddress"] = json!(address);
                    status["ipAddresses"] = json!([address]);
                }
                status
            })
            .collect();
        self.enter("Running", json!({"interfaces": interfaces})).await
    }

    async fn end(&self, phase: &str) -> Result<(), kube::Error> {
        self.enter(phase, json!({})).await
    }

    /// Without the time of the transition, KubeVirt would take an end for a crash at boot.
    async fn enter(&self, phase: &str, mut status: Value) -> Result<(), kube::Error> {
        let times = self.run.data["status"]["phaseTransitionTimestamps"].as_array();
        let mut times = times.cloned().unwrap_or_default();
        times.push(json!({"phase": phase, "phaseTransitionTimestamp": now()}));
        status["phase"] = phase.into();
        status["phaseTransitionTimestamps"] = times.into();
        self.change(status).await
    }

    /// Whether it is paused, and whether its agent answers.
    async fn set_conditions(&self) -> Result<(), kube::Error> {
        let conditions = self.run.data["status"]["conditions"].as_array();
        let mut conditions = conditions.cloned().unwrap_or_default();
        let has_agent = self.context.stage.agents.lock().contains(&self.key.0);
        let paused = json!({
            "type": "Paused", "status": "True", "reason": "PausedIOError",
            "message": "VMI was paused, low-level IO error detected",
        });
        let connected = json!({ "type": "AgentConnected", "status": "True" });
        let mut has_changed = false;
        for (is_true, mut condition) in [(self.guest.is_paused, paused), (has_agent, connected)] {
            let known = conditions
                .iter()
                .position(|known| known["type"] == condition["type"]);
            has_changed |= known.is_some() != is_true;
            match known {
                Some(at) if !is_true => {
                    conditions.remove(at);
                }
                None if is_true => {
                    condition["lastProbeTime"] = now().into();
                    condition["lastTransitionTime"] = now().into();
                    conditions.push(condition);
                }
                _ => {}
            }
        }
        if !has_changed {
            return Ok(());
        }
        self.change(json!({"conditions": conditions})).await
    }

    /// Replaces the run, as virt-handler does: a merge patch would take the nulls out of the conditions, and virt-controller's own
    /// patches expect them.
    async fn change(&self, status: Value) -> Result<(), kube::Error> {
        let mut run = self.run.clone();
        for (field, value) in status.as_object().into_iter().flatten() {
            run.data["status"][field] = value.clone();
        }
        let runs =
            Api::<DynamicObject>::namespaced_with(self.context.handler.clone(), &self.key.0, &kinds::RUN);
        runs.replace(&self.key.1, &PostParams::default(), &run).await?;
        Ok(())
    }
}

/// An address for a Pod, which stays the same.
fn address(pod: &Pod) -> String {
    let uid = pod.uid().unwrap_or_default();
    let byte = |at: usize| u8::from_str_radix(uid.get(at..at + 2).unwrap_or("01"), 16).unwrap_or(1);
    format!("10.{}.{}.{}", 128 | byte(0), byte(2), byte(4).clamp(1, 254))
}
