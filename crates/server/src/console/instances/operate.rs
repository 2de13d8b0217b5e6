//! The actions on an instance.

use askama::Template;
use axum::{extract::Path, response::Response};
use http::{Method, StatusCode};
use serde_json::json;

use super::{SECTION, offers, view::Instance};
use crate::console::{
    backups::view::Backup,
    call::{Call, Id, segment},
    form::{Field, Form, INSTALL},
    page::{Shell, page},
    refusal::{Answer, Refusal},
    session_request::SessionRequest,
    text::Moment as _,
};
use api::{ImageOffer, List, PlanOffer, Single};

async fn instance(request: &SessionRequest, id: &str) -> Result<Instance, Refusal> {
    let found: Single<Instance> = request.get(&Call::get(format!("/v1/instances/{id}"))).await?;
    Ok(found.data)
}

/// The path of an instance's page.
fn page_of(id: &str) -> String {
    format!("/console/instances/{id}")
}

#[derive(Template)]
#[template(path = "console/instances/power.html")]
struct PowerPage {
    shell: Shell,
    instance: Instance,
    form: Form,
}

/// Asks whether to cut the power; the other actions do no harm.
pub async fn show_power(request: SessionRequest, Path((id, action)): Path<(String, String)>) -> Answer {
    request.check_may_write()?;
    if action != "poweroff" {
        return Err(Refusal::no_such_page());
    }
    let id = segment(&id);
    let instance = instance(&request, &id).await?;
    let call = Call::post(format!("/v1/instances/{id}/{action}"));
    let template = PowerPage {
        shell: request.shell_with(SECTION, format!("Cut the power of {}", instance.name), &[call]),
        instance,
        form: Form::new(),
    };
    Ok(page(StatusCode::OK, &template))
}

/// Starts, stops or reboots an instance, or cuts its power.
pub async fn power(
    request: SessionRequest,
    Path((id, action)): Path<(String, String)>,
    form: Form,
) -> Answer {
    if !["start", "stop", "reboot", "poweroff"].contains(&action.as_str()) {
        return Err(Refusal::no_such_page());
    }
    let id = segment(&id);
    let call = Call::post(format!("/v1/instances/{id}/{action}")).once(form.key());
    request.begin(&page_of(&id), &call).await
}

#[derive(Template)]
#[template(path = "console/instances/plan.html")]
struct PlanPage {
    shell: Shell,
    instance: Instance,
    plans: Vec<PlanOffer>,
    form: Form,
}

fn plan_call(id: &str, form: &Form) -> Call {
    let body = json!({ "plan": form.value("plan"), "reboot": form.value("when") != "later" });
    Call::with(Method::PATCH, format!("/v1/instances/{id}"), body)
}

async fn plan_page(request: &SessionRequest, status: StatusCode, id: &str, form: Form) -> Answer {
    let instance = instance(request, id).await?;
    let plans: List<PlanOffer> = request.get(&Call::get("/v1/plans?limit=100")).await?;
    let title = format!("Resize {}", instance.name);
    let template = PlanPage {
        shell: request.shell_with(SECTION, title, &[plan_call(id, &form)]),
        instance,
        plans: plans.data,
        form,
    };
    Ok(page(status, &template))
}

/// Shows the plans that an instance can change to.
pub async fn show_plan(request: SessionRequest, Id(id): Id) -> Answer {
    request.check_may_write()?;
    let instance = instance(&request, &id).await?;
    let plan = instance.pending_plan.unwrap_or(instance.plan).as_str();
    let form = Form::new().with("plan", plan).with("when", "now");
    plan_page(&request, StatusCode::OK, &id, form).await
}

pub async fn change_plan(request: SessionRequest, Id(id): Id, mut form: Form) -> Answer {
    let before = instance(&request, &id).await?;
    match request.get::<Single<Instance>>(&plan_call(&id, &form)).await {
        Ok(changed) => {
            let note = plan_note(&before, &changed.data);
            let path = page_of(&id);
            Ok(if changed.data.is_changing_plan() {
                request.begun(&path, &note).await
            } else {
                request.done(&path, &note).await
            })
        }
        Err(refusal) => {
            let status = request.refused(refusal, &mut form)?;
            plan_page(&request, status, &id, form).await
        }
    }
}

/// Describes the result of a change of plan.
fn plan_note(before: &Instance, after: &Instance) -> String {
    let name = &after.name;
    match (&before.pending_plan, &after.pending_plan) {
        (_, Some(plan)) if after.is_changing_plan() => format!("Instance {name} is being resized to {plan}."),
        (_, Some(plan)) => {
            format!("{name} changes to {plan} with the next reboot, or when it is stopped and started.")
        }
        (Some(dropped), None) if *dropped != after.plan => {
            format!(
                "The change to {dropped} was called off; {name} keeps the plan {}.",
                after.plan
            )
        }
        (_, None) if before.plan == after.plan => {
            format!("Nothing was changed: {name} has the plan {} already.", after.plan)
        }
        (_, None) => format!("Instance {name} was resized to {}.", after.plan),
    }
}

#[derive(Template)]
#[template(path = "console/instances/install.html")]
struct InstallPage {
    shell: Shell,
    instance: Instance,
    images: Vec<ImageOffer>,
    /// Completed backups that fit.
    backups: Vec<Backup>,
    form: Form,
}

#[derive(Template)]
#[template(path = "console/instances/rebuild.html")]
struct RebuildPage {
    shell: Shell,
    instance: Instance,
    /// The backup to restore; `None` to install an image.
    backup: Option<Backup>,
    form: Form,
}

fn rebuild_call(id: &str, form: &Form) -> Call {
    let (source, what) = form.install();
    let body = json!({ source: what });
    Call::with(Method::POST, format!("/v1/instances/{id}/rebuild"), body).once(form.key())
}

/// Shows the images and backups that an instance can be reinstalled from or, once one is chosen, the consequences.
pub async fn show_rebuild(request: SessionRequest, Id(id): Id) -> Answer {
    request.check_may_write()?;
    let chosen = request.query.get(INSTALL);
    if !chosen.is_empty() {
        let form = Form::new().with(INSTALL, chosen);
        return rebuild_page(&request, StatusCode::OK, &id, form).await;
    }
    let instance = instance(&request, &id).await?;
    let images = offers::images(&request, &instance.region).await?;
    let regions = offers::regions(&request).await?;
    let backups: List<Backup> = request
        .get(&Call::get("/v1/backups?status=completed&limit=100"))
        .await?;
    let fits = |backup: &Backup| {
        backup.disk_size.is_none_or(|size| size <= instance.disk_size)
            && offers::restores(&regions, backup, &instance.region)
    };
    let form = Form::new().with(INSTALL, &format!("image:{}", instance.image));
    let template = InstallPage {
        shell: request.shell_with(
            SECTION,
            format!("Rebuild {}", instance.name),
            &[rebuild_call(&id, &form)],
        ),
        images,
        backups: backups.data.into_iter().filter(fits).collect(),
        instance,
        form,
    };
    Ok(page(StatusCode::OK, &template))
}

/// Shows what is lost and what is installed, and asks for the name of the instance.
async fn rebuild_page(request: &SessionRequest, status: StatusCode, id: &str, form: Form) -> Answer {
    let instance = instance(request, id).await?;
    let backup = match form.install() {
        ("backup", backup) => {
            let call = Call::get(format!("/v1/backups/{}", segment(backup)));
            Some(request.get::<Single<Backup>>(&call).await?.data)
        }
        _ => None,
    };
    let verb = if backup.is_some() { "Restore" } else { "Rebuild" };
    let template = RebuildPage {
        shell: request.shell_with(
            SECTION,
            format!("{verb} {}", instance.name),
            &[rebuild_call(id, &form)],
        ),
        instance,
        backup,
        form,
    };
    Ok(page(status, &template))
}

/// Reinstalls the server. Its name must be typed, because its data is lost.
pub async fn rebuild(request: SessionRequest, Id(id): Id, mut form: Form) -> Answer {
    if request.may_write() && !confirmed(&request, &id, &mut form).await? {
        return rebuild_page(&request, StatusCode::UNPROCESSABLE_ENTITY, &id, form).await;
    }
    let call = rebuild_call(&id, &form);
    match request.begin(&page_of(&id), &call).await {
        Err(refusal) => {
            let status = request.refused(refusal, &mut form)?;
            rebuild_page(&request, status, &id, form).await
        }
        begun => begun,
    }
}

/// Whether the name of the instance was typed; if not, marks the field.
async fn confirmed(request: &SessionRequest, id: &str, form: &mut Form) -> Result<bool, Refusal> {
    let instance = instance(request, id).await?;
    let name = &instance.name;
    let is_typed = form.text("confirm") == name;
    if !is_typed {
        form.mark("confirm", &format!("must be {name}"));
    }
    Ok(is_typed)
}

#[derive(Template)]
#[template(path = "console/instances/settings.html")]
struct SettingsPage {
    shell: Shell,
    instance: Instance,
    form: Form,
}

/// The fields of the settings.
const SETTINGS: [Field; 5] = [
    Field {
        name: "name",
        label: "Name",
        is_choice: false,
    },
    Field {
        name: "tags",
        label: "Tags",
        is_choice: false,
    },
    Field {
        name: "backup_enabled",
        label: "Daily backups",
        is_choice: true,
    },
    Field {
        name: "monitoring_enabled",
        label: "Monitoring",
        is_choice: true,
    },
    Field {
        name: "deletion_protection",
        label: "Protection",
        is_choice: true,
    },
];

fn settings_call(id: &str, form: &Form) -> Call {
    let body = json!({
        "name": form.text("name"),
        "tags": form.words("tags"),
        "backup_enabled": form.has("backup_enabled", "true"),
        "monitoring_enabled": form.has("monitoring_enabled", "true"),
        "deletion_protection": form.has("deletion_protection", "true"),
    });
    Call::with(Method::PATCH, format!("/v1/instances/{id}"), body).if_match(form.version())
}

/// An instance, the form with its settings, and the instance's version.
async fn settings(request: &SessionRequest, id: &str) -> Result<(Instance, Form, String), Refusal> {
    let call = Call::get(format!("/v1/instances/{id}"));
    let (found, version): (Single<Instance>, _) = request.get_version(&call).await?;
    let instance = found.data;
    let mut form = Form::default()
        .with("name", &instance.name)
        .with("tags", &instance.tags_text());
    for (name, is_on) in [
        ("backup_enabled", instance.backup_enabled),
        ("monitoring_enabled", instance.monitoring_enabled),
        ("deletion_protection", instance.deletion_protection),
    ] {
        if is_on {
            form = form.with(name, "true");
        }
    }
    Ok((instance, form, version))
}

fn settings_page(request: &SessionRequest, status: StatusCode, instance: Instance, form: Form) -> Response {
    let title = format!("Settings of {}", instance.name);
    let template = SettingsPage {
        shell: request.shell_with(SECTION, title, &[settings_call(&instance.id, &form)]),
        instance,
        form,
    };
    page(status, &template)
}

/// Shows the settings that can be changed at any time.
pub async fn show_settings(request: SessionRequest, Id(id): Id) -> Answer {
    request.check_may_write()?;
    let (instance, form, version) = settings(&request, &id).await?;
    let form = form.remembering(&version);
    Ok(settings_page(&request, StatusCode::OK, instance, form))
}

/// Changes the settings, unless somebody else has changed them since the form was opened.
pub async fn change_settings(request: SessionRequest, Id(id): Id, mut form: Form) -> Answer {
    let call = |form: &Form| settings_call(&id, form);
    let current = async || {
        let (_, form, version) = settings(&request, &id).await?;
        Ok((form, version))
    };
    let sent = request.save(&mut form, &SETTINGS, call, current).await;
    match sent {
        Ok(_) => Ok(request.done(&page_of(&id), "The changes are saved.").await),
        Err(refusal) => {
            let status = request.refused(refusal, &mut form)?;
            let instance = instance(&request, &id).await?;
            Ok(settings_page(&request, status, instance, form))
        }
    }
}

#[derive(Template)]
#[template(path = "console/instances/backup.html")]
struct BackupPage {
    shell: Shell,
    instance: Instance,
    form: Form,
}

fn backup_call(id: &str, form: &Form) -> Call {
    let name = form.text("name");
    let body = if name.is_empty() {
        json!({})
    } else {
        json!({ "name": name })
    };
    Call::with(Method::POST, format!("/v1/instances/{id}/backups"), body).once(form.key())
}

async fn backup_page(request: &SessionRequest, status: StatusCode, id: &str, form: Form) -> Answer {
    let instance = instance(request, id).await?;
    let title = format!("Back up {}", instance.name);
    let template = BackupPage {
        shell: request.shell_with(SECTION, title, &[backup_call(id, &form)]),
        instance,
        form,
    };
    Ok(page(status, &template))
}

/// Shows the form for a backup.
pub async fn show_backup(request: SessionRequest, Id(id): Id) -> Answer {
    request.check_may_write()?;
    backup_page(&request, StatusCode::OK, &id, Form::new()).await
}

/// Starts a backup.
pub async fn back_up(request: SessionRequest, Id(id): Id, mut form: Form) -> Answer {
    let call = backup_call(&id, &form);
    match request.begin(&page_of(&id), &call).await {
        Err(refusal) => {
            let status = request.refused(refusal, &mut form)?;
            backup_page(&request, status, &id, form).await
        }
        begun => begun,
    }
}

#[derive(Template)]
#[template(path = "console/instances/delete.html")]
struct DeletePage {
    shell: Shell,
    instance: Instance,
    form: Form,
}

async fn delete_page(request: &SessionRequest, status: StatusCode, id: &str, form: Form) -> Answer {
    let instance = instance(request, id).await?;
    let title = format!("Delete {}", instance.name);
    let call = Call::delete(format!("/v1/instances/{id}"));
    let template = DeletePage {
        shell: request.shell_with(SECTION, title, &[call]),
        instance,
        form,
    };
    Ok(page(status, &template))
}

/// Asks for the name of the instance, to confirm its deletion.
pub async fn show_delete(request: SessionRequest, Id(id): Id) -> Answer {
    request.check_may_write()?;
    delete_page(&request, StatusCode::OK, &id, Form::new()).await
}

/// Deletes the instance.
pub async fn delete(request: SessionRequest, Id(id): Id, mut form: Form) -> Answer {
    if request.may_write() && !confirmed(&request, &id, &mut form).await? {
        return delete_page(&request, StatusCode::UNPROCESSABLE_ENTITY, &id, form).await;
    }
    match request.send(&Call::delete(format!("/v1/instances/{id}"))).await {
        Ok(_) => {
            let note = format!("Instance {} is deleted.", form.text("confirm"));
            Ok(request.done("/console/instances", &note).await)
        }
        Err(refusal) if refusal.status == StatusCode::CONFLICT => {
            form.refused(&refusal);
            delete_page(&request, refusal.status, &id, form).await
        }
        Err(refusal) => Err(refusal),
    }
}
