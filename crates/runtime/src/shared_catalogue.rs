//! The catalogue in use, replaced when its file changes.

use std::{collections::BTreeSet, path::PathBuf, sync::Arc, time::Duration};

use parking_lot::RwLock;
use tokio_util::sync::CancellationToken;

use crate::metrics::{Metrics, OutcomeLabels};
use domain::catalogue::{
    Catalogue,
    file::{self, CatalogueError},
};

/// How often the file is read. It is small, and notifications of changes do not work on every file system.
const CHECK_EVERY: Duration = Duration::from_secs(10);

/// The catalogue in use. Cheap to clone; all clones see the same one.
#[derive(Clone, Debug, Default)]
pub struct SharedCatalogue(Arc<RwLock<Arc<Catalogue>>>);

impl SharedCatalogue {
    /// Shares a catalogue.
    pub fn new(catalogue: Catalogue) -> Self {
        Self(Arc::new(RwLock::new(Arc::new(catalogue))))
    }

    /// The catalogue as it is now. Read it once for everything that must fit together.
    pub fn current(&self) -> Arc<Catalogue> {
        self.0.read().clone()
    }

    /// Replaces the catalogue for all clones.
    pub fn replace(&self, catalogue: Catalogue) {
        *self.0.write() = Arc::new(catalogue);
    }
}

/// The file of a shared catalogue.
pub struct CatalogueFile {
    path: PathBuf,
    /// The text of the catalogue in use.
    in_use: String,
    catalogue: SharedCatalogue,
    check_every: Duration,
}

impl CatalogueFile {
    /// Reads the file for the first time.
    pub fn load(path: PathBuf) -> Result<Self, CatalogueError> {
        let in_use = file::read(&path)?;
        let catalogue = Catalogue::parse(&in_use, &path)?;
        Ok(Self {
            path,
            in_use,
            catalogue: SharedCatalogue::new(catalogue),
            check_every: CHECK_EVERY,
        })
    }

    /// The catalogue, which [`reload_until`](Self::reload_until) keeps up to date.
    pub fn catalogue(&self) -> SharedCatalogue {
        self.catalogue.clone()
    }

    /// Reads the file again until shutdown. If it cannot be used, the last catalogue stays in use, and `complain` is called
    /// once with the reason. `used` are the codes of the regions that are in use, which a new catalogue must not lose.
    pub async fn reload_until(
        mut self,
        shutdown: CancellationToken,
        metrics: Metrics,
        used: impl Fn() -> BTreeSet<String> + Send,
        complain: impl Fn(&str) + Send,
    ) {
        let mut last_error = String::new();
        loop {
            tokio::select! {
                () = shutdown.cancelled() => return,
                () = tokio::time::sleep(self.check_every) => {}
            }
            let path = self.path.clone();
            let Ok(read) = tokio::task::spawn_blocking(move || file::read(&path)).await else {
                continue;
            };
            let outcome = match read.and_then(|text| self.take(text, &used)) {
                Ok(false) => {
                    last_error.clear();
                    continue;
                }
                Ok(true) => {
                    tracing::info!(path = %self.path.display(), "the catalogue has been replaced");
                    last_error.clear();
                    "ok"
                }
                Err(error) => {
                    let error = error.to_string();
                    if error == last_error {
                        continue;
                    }
                    tracing::warn!(error, "cannot use the new catalogue; the last one stays in use");
                    complain(&error);
                    last_error = error;
                    "invalid"
                }
            };
            let labels = OutcomeLabels { outcome };
            metrics.catalogue_reloads.get_or_create_owned(&labels).inc();
        }
    }

    /// Applies the catalogue in a new text. Returns whether the text was new.
    fn take(&mut self, text: String, used: impl Fn() -> BTreeSet<String>) -> Result<bool, CatalogueError> {
        if text == self.in_use {
            return Ok(false);
        }
        let next = Catalogue::parse(&text, &self.path)?;
        let field = |(field, problem)| CatalogueError::Field {
            path: self.path.clone(),
            field,
            problem,
        };
        self.catalogue
            .current()
            .check_next(&next, &used())
            .map_err(field)?;
        self.catalogue.replace(next);
        self.in_use = text;
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use tokio::sync::mpsc;

    use super::*;

    #[tokio::test]
    async fn a_changed_file_replaces_the_catalogue_and_a_bad_one_does_not() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("catalogue.yaml");
        let write = |text: &str| {
            // As a whole, as Kubernetes does with mounted files.
            let new = folder.path().join("new");
            fs::write(&new, text).unwrap();
            fs::rename(&new, &path).unwrap();
        };
        write("regions: [fr-par-1]");
        let mut file = CatalogueFile::load(path.clone()).unwrap();
        file.check_every = Duration::from_millis(1);
        let (catalogue, metrics, shutdown) = (file.catalogue(), Metrics::new(), CancellationToken::new());
        let (complaints, mut heard) = mpsc::unbounded_channel();
        let complain = move |text: &str| complaints.send(text.to_owned()).unwrap();
        let used = || BTreeSet::from(["nl-ams-1".to_owned()]);
        let task = tokio::spawn(file.reload_until(shutdown.clone(), metrics.clone(), used, complain));
        let regions = || catalogue.current().region_codes();
        assert_eq!(regions(), "fr-par-1");

        let limit = Duration::from_secs(60);
        let until = async |expected: &str| {
            let there = async {
                while regions() != expected {
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
            };
            tokio::time::timeout(limit, there).await.unwrap();
        };
        write("regions: [de-fra-1]");
        until("de-fra-1").await;
        write("regions: [Frankfurt]");
        let complaint = tokio::time::timeout(limit, heard.recv()).await.unwrap().unwrap();
        assert!(
            complaint.contains("regions[0]: \"Frankfurt\" must be"),
            "{complaint}"
        );
        assert_eq!(regions(), "de-fra-1");
        fs::remove_file(&path).unwrap();
        let complaint = tokio::time::timeout(limit, heard.recv()).await.unwrap().unwrap();
        assert!(complaint.contains("cannot read"), "{complaint}");
        write("regions: [nl-ams-1]");
        until("nl-ams-1").await;
        let real = "{kubeconfig: /kubeconfig, installation: tests, storageClass: a, network: {profile: pod}, images: {debian-13: {pvc: a/b, user: debian}}}";
        write(&format!("regions: [{{code: nl-ams-1, kubevirt: {real}}}]"));
        let complaint = tokio::time::timeout(limit, heard.recv()).await.unwrap().unwrap();
        assert!(
            complaint.contains("regions: region nl-ams-1 has simulated servers"),
            "{complaint}"
        );
        write(&format!(
            "regions: [nl-ams-1, {{code: de-fra-1, kubevirt: {real}}}]"
        ));
        until("nl-ams-1, de-fra-1").await;

        shutdown.cancel();
        task.await.unwrap();
        assert!(heard.recv().await.is_none(), "each problem is told once");
        let page = metrics.render(crate::metrics::Format::OpenMetrics).unwrap();
        for line in [
            "stellage_catalogue_reloads_total{outcome=\"ok\"} 3",
            "stellage_catalogue_reloads_total{outcome=\"invalid\"} 3",
        ] {
            assert!(page.contains(line), "{page}");
        }
    }
}
