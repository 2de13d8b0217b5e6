//! What a region offers, as far as the catalogue says.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use super::{
    Catalogue,
    region::{Image, KubeVirt, PrivateNetworks},
};
use api::ConsoleType;

/// What a region offers.
#[derive(Clone, Copy, Debug)]
pub struct Offer<'a> {
    /// Code of the region.
    pub region: &'a str,
    /// Whether its servers are simulated.
    pub simulated: bool,
    /// Whether its servers can be backed up.
    pub backups: bool,
    /// Whether its servers can be attached to private networks.
    pub private_networks: bool,
    /// The consoles of its servers.
    pub consoles: &'static [ConsoleType],
    images: Images<'a>,
}

#[derive(Clone, Copy, Debug)]
enum Images<'a> {
    /// The simulator installs any image; these are listed.
    Any(&'a [String]),
    Mapped(&'a BTreeMap<String, Image>),
}

/// An image that can be installed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OfferedImage<'a> {
    /// Its identifier.
    pub id: &'a str,
    /// Its login user, if that is known.
    pub user: Option<&'a str>,
}

impl<'a> Offer<'a> {
    /// The images, as they are listed.
    pub fn images(&self) -> Vec<OfferedImage<'a>> {
        match self.images {
            Images::Any(listed) => listed.iter().map(|id| OfferedImage { id, user: None }).collect(),
            Images::Mapped(images) => {
                let offered = |(id, image): (&'a String, &'a Image)| OfferedImage {
                    id,
                    user: Some(&image.user),
                };
                images.iter().map(offered).collect()
            }
        }
    }

    /// Whether an image, which must be well-formed, can be installed.
    pub fn has_image(&self, id: &str) -> bool {
        match self.images {
            Images::Any(_) => true,
            Images::Mapped(images) => images.contains_key(id),
        }
    }
}

impl Catalogue {
    /// What a region, whose code must be well-formed, offers; `None` if it is not available.
    ///
    /// While all regions are simulated, any other is, too (decisions, section 3). Once one has real servers, only those that are
    /// listed are available: a mistake in a code must not lead to a server that does not exist.
    pub fn offer<'a>(&'a self, region: &'a str) -> Option<Offer<'a>> {
        let listed = self.regions.iter().find(|listed| listed.code == region);
        match listed.map(|listed| &listed.kubevirt) {
            Some(Some(kubevirt)) => Some(Offer {
                region,
                simulated: false,
                backups: kubevirt.snapshot_class.is_some(),
                private_networks: kubevirt.network.private_networks != PrivateNetworks::None,
                consoles: &[ConsoleType::Serial, ConsoleType::Vnc],
                images: Images::Mapped(&kubevirt.images),
            }),
            None if self.regions.iter().any(|listed| listed.kubevirt.is_some()) => None,
            Some(None) | None => Some(Offer {
                region,
                simulated: true,
                backups: true,
                private_networks: true,
                consoles: &[ConsoleType::Serial],
                images: Images::Any(&self.images),
            }),
        }
    }

    /// What the listed regions offer.
    pub fn offers(&self) -> Vec<Offer<'_>> {
        let listed = self.regions.iter();
        listed.filter_map(|region| self.offer(&region.code)).collect()
    }

    /// The codes of the listed regions, for a message.
    pub fn region_codes(&self) -> String {
        let codes: Vec<&str> = self.regions.iter().map(|region| region.code.as_str()).collect();
        codes.join(", ")
    }

    /// The images of all listed regions, each once. The login user of one that has several is unknown.
    pub fn all_images(&self) -> Vec<OfferedImage<'_>> {
        let mut all: Vec<OfferedImage<'_>> = Vec::new();
        for image in self.offers().iter().flat_map(Offer::images) {
            match all.iter_mut().find(|known| known.id == image.id) {
                Some(known) if known.user != image.user => known.user = None,
                Some(_) => {}
                None => all.push(image),
            }
        }
        all
    }

    /// Whether a backup of a server in one region can be restored in another. Only simulated ones move between regions.
    pub fn moves_backups(&self, from: &str, to: &str) -> bool {
        let is_simulated = |region| self.offer(region).is_some_and(|offer| offer.simulated);
        from == to || is_simulated(from) && is_simulated(to)
    }

    /// Whether `next` may take the place of this catalogue while the program runs and the regions in `used` have servers, backups or
    /// private networks. The error is the path of a field and what is wrong with it.
    pub fn check_next(&self, next: &Self, used: &BTreeSet<String>) -> Result<(), (String, String)> {
        for code in used {
            let Some(now) = self.offer(code) else { continue };
            let problem = match next.offer(code) {
                None => format!(
                    "region {code} has servers, backups or private networks; it cannot be taken out before they are deleted"
                ),
                Some(then) if then.simulated && !now.simulated => {
                    format!(
                        "region {code} has real servers, backups or private networks, which cannot become simulated ones"
                    )
                }
                Some(then) if !then.simulated && now.simulated => {
                    format!(
                        "region {code} has simulated servers or private networks, which cannot become real ones; delete them first"
                    )
                }
                Some(_) => continue,
            };
            return Err(("regions".to_owned(), problem));
        }
        for (index, region) in next.regions.iter().enumerate() {
            let (Some(then), Some(now)) = (region.kubevirt.as_ref(), self.kubevirt(&region.code)) else {
                continue;
            };
            for (field, then, now) in [
                ("installation", &then.installation, &now.installation),
                ("namespacePrefix", &then.namespace_prefix, &now.namespace_prefix),
            ] {
                if then != now {
                    let problem = format!(
                        "{then:?} must stay {now:?}: under another one, the region's servers would not be found"
                    );
                    return Err((format!("regions[{index}].kubevirt.{field}"), problem));
                }
            }
            let driver = |region: &KubeVirt| std::mem::discriminant(&region.network.private_networks);
            if used.contains(&region.code)
                && now.network.private_networks != PrivateNetworks::None
                && driver(then) != driver(now)
            {
                let problem = format!(
                    "must stay as it is while region {} has servers, backups or private networks: its networks were made in another way",
                    region.code
                );
                return Err((
                    format!("regions[{index}].kubevirt.network.privateNetworks"),
                    problem,
                ));
            }
        }
        Ok(())
    }

    /// How the real servers of a region run; `None` if it has none.
    pub fn kubevirt(&self, region: &str) -> Option<&Arc<KubeVirt>> {
        let listed = self.regions.iter().find(|listed| listed.code == region)?;
        listed.kubevirt.as_ref()
    }

    /// The codes of the regions with real servers, and how these run.
    pub fn real_regions(&self) -> impl Iterator<Item = (&str, &Arc<KubeVirt>)> {
        let regions = self.regions.iter();
        regions.filter_map(|region| Some((region.code.as_str(), region.kubevirt.as_ref()?)))
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn catalogue(regions: &str) -> Catalogue {
        Catalogue::parse(&format!("regions: [{regions}]"), Path::new("file")).unwrap()
    }

    fn real(code: &str, more: &str) -> String {
        format!(
            "{{code: {code}, kubevirt: {{kubeconfig: /{code}, installation: prod-1, storageClass: fast, network: {{profile: pod}}, images: {{debian-13: {{pvc: a/b, user: debian}}}}{more}}}}}"
        )
    }

    #[test]
    fn while_all_regions_are_simulated_any_other_is_too_and_installs_any_image() {
        let catalogue = Catalogue::default();
        let offer = catalogue.offer("xx-abc-1").unwrap();
        assert!(offer.simulated && offer.backups && offer.private_networks && offer.has_image("beos-5"));
        assert_eq!(offer.images().len(), 5);
        assert_eq!(catalogue.all_images(), offer.images());
    }

    #[test]
    fn a_region_with_real_servers_offers_what_is_mapped_for_it_and_beside_it_only_listed_regions_are_available()
     {
        let catalogue = catalogue(&format!("nl-ams-1, {}", real("de-fra-1", "")));
        let offer = catalogue.offer("de-fra-1").unwrap();
        assert!(!offer.simulated && !offer.backups && !offer.private_networks);
        assert!(offer.has_image("debian-13") && !offer.has_image("debian-12"));
        let debian = |user| OfferedImage {
            id: "debian-13",
            user,
        };
        assert_eq!(offer.images(), [debian(Some("debian"))]);
        let simulated = catalogue.offer("nl-ams-1").unwrap();
        assert!(simulated.simulated && simulated.has_image("beos-5"));
        assert!(catalogue.offer("fr-par-1").is_none());
        let all = catalogue.all_images();
        assert_eq!(all.len(), 5);
        assert!(all.contains(&debian(None)), "its user differs: {all:?}");
    }

    #[test]
    fn private_networks_are_offered_where_the_cluster_has_them_and_backups_where_it_has_a_class_of_snapshots()
    {
        for driver in ["nad", "nad, privateAttachments: [vlans/vlan-101]", "kubeOvn"] {
            let network = format!("network: {{profile: pod, privateNetworks: {driver}}}");
            let section =
                real("de-fra-1", ", snapshotClass: snap").replace("network: {profile: pod}", &network);
            let catalogue = catalogue(&section);
            let offer = catalogue.offer("de-fra-1").unwrap();
            assert!(offer.backups && offer.private_networks, "{driver}");
        }
    }

    #[test]
    fn only_backups_of_simulated_servers_move_between_regions() {
        let regions = format!(
            "nl-ams-1, fr-par-1, {}, {}",
            real("de-fra-1", ""),
            real("de-ber-1", "")
        );
        let catalogue = catalogue(&regions);
        assert!(catalogue.moves_backups("de-fra-1", "de-fra-1"));
        assert!(catalogue.moves_backups("nl-ams-1", "fr-par-1"));
        assert!(!catalogue.moves_backups("nl-ams-1", "de-fra-1"));
        assert!(!catalogue.moves_backups("de-fra-1", "de-ber-1"));
        assert!(
            !catalogue.moves_backups("xx-gone-1", "nl-ams-1"),
            "it is not listed"
        );
    }

    /// Row 59 of the failure matrix (docs/kubevirt.md).
    #[test]
    fn a_region_with_servers_stays_as_it_is_and_one_without_may_go() {
        let now = catalogue(&format!("nl-ams-1, {}", real("de-fra-1", "")));
        let next = |regions: &str, used: &[&str]| {
            let used = used.iter().map(|code| (*code).to_owned()).collect();
            now.check_next(&catalogue(regions), &used)
                .map_err(|(field, problem)| format!("{field}: {problem}"))
        };
        let (all, fra) = (["de-fra-1", "nl-ams-1"], real("de-fra-1", ""));
        let elsewhere = fra.replace("kubeconfig: /de-fra-1", "kubeconfig: /elsewhere");
        for (regions, used) in [
            (format!("nl-ams-1, {elsewhere}, fr-par-1"), &all[..]),
            (format!("nl-ams-1, {fra}, {}", real("de-ber-1", "")), &all[..]),
            ("nl-ams-1".to_owned(), &all[1..]),
            (fra.clone(), &all[..1]),
            // It was unknown before.
            (format!("nl-ams-1, {fra}"), &["xx-gone-1"][..]),
        ] {
            assert_eq!(next(&regions, used), Ok(()), "{regions}");
        }
        let prefix = real("de-fra-1", ", namespacePrefix: vm-");
        let both = "regions: region de-fra-1 has real servers";
        for (regions, says) in [
            (fra.clone(), "regions: region nl-ams-1 has servers"),
            ("nl-ams-1".to_owned(), both),
            ("nl-ams-1, de-fra-1".to_owned(), both),
            (real("de-ber-1", ""), "regions: region de-fra-1 has servers"),
            (
                format!("{}, {}", real("de-fra-1", ""), real("nl-ams-1", "")),
                "regions: region nl-ams-1 has simulated servers",
            ),
        ] {
            let error = next(&regions, &all).unwrap_err();
            assert!(error.starts_with(says), "{regions}: {error}");
        }
        let with = |driver: &str| {
            fra.replace(
                "network: {profile: pod}",
                &format!("network: {{profile: pod, privateNetworks: {driver}}}"),
            )
        };
        let (nad, pool) = (with("nad"), with("nad, privateAttachments: [vlans/vlan-101]"));
        let used: BTreeSet<String> = ["de-fra-1".to_owned()].into();
        for (before, after, used, is_fine) in [
            (&fra, &nad, &used, true),
            (&nad, &nad, &used, true),
            (&nad, &pool, &used, false),
            (&nad, &fra, &used, false),
            (&pool, &with("kubeOvn"), &BTreeSet::new(), true),
        ] {
            let checked = catalogue(before).check_next(&catalogue(after), used);
            assert_eq!(checked.is_ok(), is_fine, "{before} {after}: {checked:?}");
        }
        for (regions, field) in [
            (
                prefix.as_str(),
                "namespacePrefix: \"vm-\" must stay \"stellage-\"",
            ),
            (
                &real("de-fra-1", "").replace("prod-1", "prod-2"),
                "installation: \"prod-2\" must stay \"prod-1\"",
            ),
        ] {
            let error = next(&format!("nl-ams-1, {regions}"), &[]).unwrap_err();
            assert!(
                error.starts_with(&format!("regions[1].kubevirt.{field}")),
                "{error}"
            );
        }
    }
}
