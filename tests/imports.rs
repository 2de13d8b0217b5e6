//! Checks that imports go one way (docs/architecture.md): at every level of the module tree, the children of a module form no
//! cycle, and the folders of the program use only folders below them. Needs no cluster, because it reads the source.
//!
//! There is an arrow from one child to another if the files of the first name anything in those of the second: in a `use`, in a
//! path in the code or a macro, or through a re-export. Children may use what their parent defines in its own `mod.rs`. Test
//! code is left out.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, VecDeque},
    fmt::Write as _,
    fs,
    path::{Path, PathBuf},
};

use proc_macro2::{Ident, Span, TokenStream, TokenTree};
use syn::{
    Attribute, Expr, ImplItem, Item, ItemMod, ItemUse, Lit, Meta, UseTree,
    visit::{self, Visit},
};

/// The roots of all checked crates.
const ROOTS: [&str; 5] = [
    LIBRARY,
    "src/main.rs",
    "benches/side_by_side/main.rs",
    "control-plane/src/lib.rs",
    "control-plane/src/main.rs",
];
const LIBRARY: &str = "src/lib.rs";

/// The folders of the program from top to bottom. Each may use only lower rows, or its own row without a
/// cycle.
const LAYERS: [&[&str]; 5] = [
    &["serve", "settings"],
    &["facade", "console", "controllers", "cli"],
    &[
        "service",
        "delivery",
        "lifecycle",
        "backups",
        "billing",
        "mail",
        "monitoring",
    ],
    &["events", "providers", "runtime", "catalogue"],
    &["resources"],
];

/// The HTTP crates that the service must not use.
const HTTP: [&str; 9] = [
    "axum",
    "http",
    "http_body",
    "http_body_util",
    "hyper",
    "hyper_util",
    "reqwest",
    "tower",
    "tower_http",
];
/// The module that serves HTTP, which the service must not use either.
const HTTP_SERVER: [&str; 2] = ["runtime", "http"];
/// The folders that axum's handlers are in.
const FACES: [&str; 2] = ["facade", "console"];

#[test]
fn no_modules_import_each_other_in_a_circle() {
    let circles: Vec<String> = ROOTS.iter().flat_map(|root| Tree::read(root).circles()).collect();
    assert!(circles.is_empty(), "\n{}", circles.join("\n"));
}

#[test]
fn each_folder_imports_only_what_is_below_it() {
    let wrong = Tree::read(LIBRARY).upward(&LAYERS);
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}

#[test]
fn the_service_knows_nothing_of_http() {
    let tree = Tree::read(LIBRARY);
    let is_service = |folder: &str| folder == "service";
    let wrong = [
        tree.external(is_service, &HTTP),
        tree.internal(is_service, &HTTP_SERVER),
    ]
    .concat();
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}

#[test]
fn axum_is_used_by_what_answers_requests_alone() {
    let wrong = Tree::read(LIBRARY).external(|folder| !FACES.contains(&folder), &["axum"]);
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}

#[test]
fn a_circle_is_shown_with_the_lines_that_make_it() {
    let tree = Tree::parse(
        "mod a { pub struct A; mod deep { fn f() { vec![super::super::B::new()]; } } }
         mod b { pub struct B; #[cfg(test)] mod tests { use crate::c::C; } use super::c; }
         mod c { pub struct C; type T = crate::a::A; }
         mod d { use crate::b::B; }
         pub use b::B;",
    );
    assert_eq!(
        tree.circles(),
        ["crate: a → b → c → a
    a → b   made-up.rs:1   super::super::B::new
    b → c   made-up.rs:2   super::c
    c → a   made-up.rs:3   crate::a::A
"]
    );
}

#[test]
fn an_import_from_above_and_a_folder_without_a_layer_are_shown() {
    let tree = Tree::parse("mod top {} mod bottom { use crate::top; } mod other {}");
    let wrong = tree.upward(&[&["top"], &["bottom"]]);
    assert_eq!(
        wrong,
        [
            "crate::other has no place in LAYERS; give it one",
            "bottom → top goes up   made-up.rs:1   crate::top",
        ]
    );
}

#[test]
fn a_service_that_names_an_http_crate_or_the_http_server_is_shown() {
    let tree = Tree::parse(
        "mod service { mod a { fn f() -> http::StatusCode {} } mod b { use axum::Router; use crate::runtime; }
             mod c { type L = super::super::runtime::http::Limits; type C = crate::runtime::Clock; }
             mod d { use crate::runtime::Limits; } }
         mod runtime { pub use http::Limits; pub struct Clock; mod http { pub struct Limits; } }
         mod facade { use axum::Router; }",
    );
    let is_service = |folder: &str| folder == "service";
    assert_eq!(
        tree.external(is_service, &HTTP),
        ["made-up.rs:1   http::StatusCode", "made-up.rs:1   axum::Router"]
    );
    assert_eq!(
        tree.internal(is_service, &HTTP_SERVER),
        [
            "made-up.rs:2   super::super::runtime::http::Limits",
            "made-up.rs:3   crate::runtime::Limits",
        ]
    );
    assert_eq!(
        tree.external(|folder| !FACES.contains(&folder), &["axum"]),
        ["made-up.rs:1   axum::Router"]
    );
}

/// The names from the crate's root to a module; empty for the root.
type ModulePath = Vec<String>;

/// The modules of a crate.
#[derive(Default)]
struct Tree {
    modules: BTreeMap<ModulePath, Module>,
}

#[derive(Default)]
struct Module {
    file: PathBuf,
    /// The names that its `use` items import, with the paths as written.
    names: HashMap<String, Vec<String>>,
    mentions: Vec<Mention>,
}

/// A path in the source.
struct Mention {
    path: Vec<String>,
    line: usize,
}

/// Positions of arrows, by the children that they start and end at.
type Arrows = BTreeMap<String, BTreeMap<String, String>>;

impl Tree {
    fn read(root: &str) -> Self {
        let mut tree = Self::default();
        let folder = Path::new(root).parent().expect("a file is in a folder");
        tree.add_file(Vec::new(), Path::new(root), folder);
        tree
    }

    fn parse(source: &str) -> Self {
        let mut tree = Self::default();
        let items = syn::parse_file(source).expect("Rust").items;
        tree.add(Vec::new(), Path::new("made-up.rs"), Path::new(""), &items);
        tree
    }

    /// `folder` contains the files of its children.
    fn add_file(&mut self, path: ModulePath, file: &Path, folder: &Path) {
        let source = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(file))
            .unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        let syntax = syn::parse_file(&source).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        self.add(path, file, folder, &syntax.items);
    }

    fn add(&mut self, path: ModulePath, file: &Path, folder: &Path, items: &[Item]) {
        let mut reader = Reader::default();
        for item in items {
            match item {
                Item::Mod(module) => self.add_child(&path, file, folder, module),
                Item::Use(item) if !is_for_tests(&item.attrs) => {
                    flatten(&item.tree, &[], &mut |path, name, _| {
                        if let Some(name) = name {
                            reader.module.names.insert(name.to_owned(), path);
                        }
                    });
                    reader.visit_item_use(item);
                }
                item => reader.visit_item(item),
            }
        }
        file.clone_into(&mut reader.module.file);
        self.modules.insert(path, reader.module);
    }

    fn add_child(&mut self, parent: &ModulePath, file: &Path, folder: &Path, module: &ItemMod) {
        // A module elsewhere belongs to the tests (`#[path = "…/tests/…"]`); the benchmarks share it.
        if is_for_tests(&module.attrs)
            || module
                .attrs
                .iter()
                .any(|attribute| attribute.path().is_ident("path"))
        {
            return;
        }
        let name = module.ident.to_string();
        let path = [parent.as_slice(), std::slice::from_ref(&name)].concat();
        let folder = folder.join(&name);
        if let Some((_, items)) = &module.content {
            self.add(path, file, &folder, items);
            return;
        }
        let (flat, nested) = (folder.with_extension("rs"), folder.join("mod.rs"));
        let is_there = |file: &Path| Path::new(env!("CARGO_MANIFEST_DIR")).join(file).exists();
        self.add_file(path, if is_there(&flat) { &flat } else { &nested }, &folder);
    }

    /// The modules that a path leads through or to, following re-exports.
    fn resolve(&self, from: &[String], path: &[String]) -> Vec<ModulePath> {
        let mut through = Vec::new();
        self.walk_from(from, path, &mut through, 0);
        through
    }

    /// Like [`Self::walk`], for a path as written in a module.
    fn walk_from(
        &self,
        from: &[String],
        path: &[String],
        through: &mut Vec<ModulePath>,
        depth: u8,
    ) -> Option<ModulePath> {
        let mut at = from.to_vec();
        let mut rest = path;
        match rest.first().map(String::as_str) {
            Some("crate") => {
                at.clear();
                rest = &rest[1..];
            }
            Some("self") => rest = &rest[1..],
            _ => {}
        }
        while let Some(("super", tail)) = rest.split_first().map(|(first, tail)| (first.as_str(), tail)) {
            at.pop();
            rest = tail;
        }
        self.walk(at, rest, through, depth)
    }

    /// Follows a path from a module. Returns the module at its end, if it is one.
    fn walk(
        &self,
        mut at: ModulePath,
        path: &[String],
        through: &mut Vec<ModulePath>,
        depth: u8,
    ) -> Option<ModulePath> {
        for (i, name) in path.iter().enumerate() {
            through.push(at.clone());
            let child = [at.as_slice(), std::slice::from_ref(name)].concat();
            if self.modules.contains_key(&child) {
                at = child;
                continue;
            }
            let target = self.modules.get(&at)?.names.get(name)?;
            // `use serde::serde` would import itself.
            let end = if depth < 8 {
                self.walk_from(&at, target, through, depth + 1)
            } else {
                None
            };
            return self.walk(end?, &path[i + 1..], through, depth + 1);
        }
        through.push(at.clone());
        Some(at)
    }

    /// The arrows among the children of each module.
    fn arrows(&self) -> BTreeMap<ModulePath, Arrows> {
        let mut all: BTreeMap<ModulePath, Arrows> = BTreeMap::new();
        for (path, module) in &self.modules {
            for mention in &module.mentions {
                for target in self.resolve(path, &mention.path) {
                    let common = path.iter().zip(&target).take_while(|(a, b)| a == b).count();
                    if let (Some(from), Some(to)) = (path.get(common), target.get(common)) {
                        let arrows = all
                            .entry(path[..common].to_vec())
                            .or_default()
                            .entry(from.clone())
                            .or_default();
                        arrows
                            .entry(to.clone())
                            .or_insert_with(|| mention.shown(&module.file));
                    }
                }
            }
        }
        all
    }

    fn circles(&self) -> Vec<String> {
        let mut messages = Vec::new();
        for (parent, arrows) in self.arrows() {
            let parent = shown(&parent);
            let mut seen = BTreeSet::new();
            for start in arrows.keys() {
                let Some(circle) = shortest_circle(start, &arrows) else {
                    continue;
                };
                // The same cycle, starting at another of its modules.
                if !seen.insert(circle.iter().cloned().collect::<BTreeSet<_>>()) {
                    continue;
                }
                let mut message = format!("{parent}: {}\n", circle.join(" → "));
                for pair in circle.windows(2) {
                    let place = &arrows[&pair[0]][&pair[1]];
                    writeln!(message, "    {} → {}   {place}", pair[0], pair[1]).expect("text");
                }
                messages.push(message);
            }
        }
        messages
    }

    fn upward(&self, layers: &[&[&str]]) -> Vec<String> {
        let row = |name: &str| layers.iter().position(|layer| layer.contains(&name));
        let folders = self
            .modules
            .keys()
            .filter(|path| path.len() == 1)
            .map(|path| &path[0]);
        let mut messages: Vec<String> = folders
            .filter(|name| row(name).is_none())
            .map(|name| format!("crate::{name} has no place in LAYERS; give it one"))
            .collect();
        let top = self.arrows().remove(&Vec::new()).unwrap_or_default();
        for (from, targets) in &top {
            let upward = targets
                .iter()
                .filter(|(to, _)| row(from) > row(to) && row(to).is_some());
            messages.extend(upward.map(|(to, place)| format!("{from} → {to} goes up   {place}")));
        }
        messages
    }

    /// The positions at which these folders use one of these crates.
    fn external(&self, folders: impl Fn(&str) -> bool, crates: &[&str]) -> Vec<String> {
        self.positions(folders, |_, mention| crates.contains(&mention.path[0].as_str()))
    }

    /// The positions at which these folders use a module of the program, or anything in it.
    fn internal(&self, folders: impl Fn(&str) -> bool, module: &[&str]) -> Vec<String> {
        self.positions(folders, |from, mention| {
            let through = self.resolve(from, &mention.path);
            through
                .iter()
                .any(|path| path.iter().take(module.len()).eq(module))
        })
    }

    /// The positions of some mentions in these folders.
    fn positions(
        &self,
        folders: impl Fn(&str) -> bool,
        is_wanted: impl Fn(&[String], &Mention) -> bool,
    ) -> Vec<String> {
        let modules = self
            .modules
            .iter()
            .filter(|(path, _)| path.first().is_some_and(|first| folders(first)));
        modules
            .flat_map(|(path, module)| {
                let wanted = module.mentions.iter().filter(|it| is_wanted(path, it));
                wanted
                    .map(|mention| mention.shown(&module.file))
                    .collect::<Vec<_>>()
            })
            .collect()
    }
}

impl Mention {
    fn shown(&self, file: &Path) -> String {
        format!("{}:{}   {}", file.display(), self.line, self.path.join("::"))
    }
}

fn shown(path: &ModulePath) -> String {
    std::iter::once("crate")
        .chain(path.iter().map(String::as_str))
        .collect::<Vec<_>>()
        .join("::")
}

/// The shortest cycle through a child, with the child at both ends.
fn shortest_circle(start: &str, arrows: &Arrows) -> Option<Vec<String>> {
    let mut ways = VecDeque::from([vec![start.to_owned()]]);
    let mut reached = BTreeSet::new();
    while let Some(way) = ways.pop_front() {
        for next in arrows
            .get(&way[way.len() - 1])
            .into_iter()
            .flat_map(BTreeMap::keys)
        {
            let longer = [way.as_slice(), std::slice::from_ref(next)].concat();
            if next == start {
                return Some(longer);
            }
            if reached.insert(next) {
                ways.push_back(longer);
            }
        }
    }
    None
}

fn is_for_tests(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| match &attribute.meta {
        Meta::List(list) => list.path.is_ident("cfg") && list.tokens.to_string() == "test",
        _ => false,
    })
}

/// Calls `found` with each path of a `use` item and the name that it imports; a `*` imports none.
fn flatten(tree: &UseTree, before: &[String], found: &mut impl FnMut(Vec<String>, Option<&str>, Span)) {
    let with = |name: &Ident| {
        // `a::{self, B}` imports `a`.
        let own = (name != "self" || before.is_empty()).then(|| name.to_string());
        [before, own.as_slice()].concat()
    };
    match tree {
        UseTree::Path(path) => flatten(&path.tree, &with(&path.ident), found),
        UseTree::Name(name) => {
            let path = with(&name.ident);
            found(path.clone(), path.last().map(String::as_str), name.ident.span());
        }
        UseTree::Rename(rename) => found(
            with(&rename.ident),
            Some(&rename.rename.to_string()),
            rename.ident.span(),
        ),
        UseTree::Glob(glob) => found(before.to_vec(), None, glob.star_token.span),
        UseTree::Group(group) => group.items.iter().for_each(|tree| flatten(tree, before, found)),
    }
}

/// Collects the paths in a module's own items.
#[derive(Default)]
struct Reader {
    module: Module,
}

impl Reader {
    fn mention(&mut self, path: Vec<String>, span: Span) {
        // A single name comes from a `use`, which is counted already, or from the module itself.
        if path.len() > 1 {
            let line = span.start().line;
            self.module.mentions.push(Mention { path, line });
        }
    }

    /// Paths in the unparsed tokens of macros and attributes, and in their strings.
    fn scan(&mut self, tokens: TokenStream, with_strings: bool) {
        let (mut path, mut start, mut colons) = (Vec::new(), Span::call_site(), 0);
        for token in tokens {
            match token {
                TokenTree::Punct(punct) if punct.as_char() == ':' && !path.is_empty() => colons += 1,
                TokenTree::Ident(ident) if colons == 2 => {
                    path.push(ident.to_string());
                    colons = 0;
                }
                token => {
                    self.mention(std::mem::take(&mut path), start);
                    colons = 0;
                    match token {
                        TokenTree::Ident(ident) => {
                            start = ident.span();
                            path.push(ident.to_string());
                        }
                        TokenTree::Group(group) => self.scan(group.stream(), with_strings),
                        TokenTree::Literal(literal) if with_strings => {
                            if let Ok(path) = syn::parse_str::<syn::LitStr>(&literal.to_string())
                                && let Ok(path) = path.parse::<syn::Path>()
                            {
                                self.mention(names(&path), literal.span());
                            }
                        }
                        _ => {}
                    }
                }
            }
        }
        self.mention(path, start);
    }
}

fn names(path: &syn::Path) -> Vec<String> {
    path.segments
        .iter()
        .map(|segment| segment.ident.to_string())
        .collect()
}

impl<'ast> Visit<'ast> for Reader {
    fn visit_item(&mut self, item: &'ast Item) {
        let attributes = match item {
            Item::Const(item) => &item.attrs,
            Item::Enum(item) => &item.attrs,
            Item::Fn(item) => &item.attrs,
            Item::Impl(item) => &item.attrs,
            Item::Macro(item) => &item.attrs,
            Item::Static(item) => &item.attrs,
            Item::Struct(item) => &item.attrs,
            Item::Trait(item) => &item.attrs,
            Item::Type(item) => &item.attrs,
            Item::Use(item) => &item.attrs,
            _ => return visit::visit_item(self, item),
        };
        if !is_for_tests(attributes) {
            visit::visit_item(self, item);
        }
    }

    fn visit_impl_item(&mut self, item: &'ast ImplItem) {
        match item {
            ImplItem::Fn(function) if is_for_tests(&function.attrs) => {}
            item => visit::visit_impl_item(self, item),
        }
    }

    fn visit_item_use(&mut self, item: &'ast ItemUse) {
        flatten(&item.tree, &[], &mut |path, _, span| self.mention(path, span));
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        self.mention(names(path), path.segments[0].ident.span());
        visit::visit_path(self, path);
    }

    fn visit_macro(&mut self, item: &'ast syn::Macro) {
        self.scan(item.tokens.clone(), false);
        visit::visit_macro(self, item);
    }

    fn visit_attribute(&mut self, attribute: &'ast Attribute) {
        match &attribute.meta {
            Meta::List(list) => self.scan(list.tokens.clone(), true),
            Meta::NameValue(pair) if !pair.path.is_ident("doc") => {
                if let Expr::Lit(literal) = &pair.value
                    && let Lit::Str(text) = &literal.lit
                    && let Ok(path) = text.parse::<syn::Path>()
                {
                    self.mention(names(&path), text.span());
                }
            }
            _ => {}
        }
    }
}
