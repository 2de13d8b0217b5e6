//! One reconcile of one account: `observe`, decide ([`domain::invoice::ledger`]), `apply`. What is metered is copied to its open invoice,
//! and invoices that are due are issued.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
    time::Duration,
};

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::{Api, core::DeserializeGuard};
use parking_lot::Mutex;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::{
    Gone, Shared, Unsettled,
    apply::name,
    books,
    observe::{billed, holder},
};
use domain::{
    catalogue::InvoiceTerms,
    event::OutboxVersion,
    invoice::{
        PriceHistory,
        ledger::{Books, Facts, Metered, Step, Subjects, next},
    },
};
use resources::{Account, AccountSpec, Backup, Invoice, invoice_page::MAX_ENTRIES, origin};
use runtime::{
    ObjectRef, Store,
    backoff::{AFTER_CONFLICT, Backoffs},
    client::{CallError, bounded},
    watch::key,
    work_queue::{Class, Reconcile},
};

/// How long after a write of an account's entries further changes wait, so that many are stored in one write.
const TOGETHER: Duration = Duration::from_secs(1);
/// Number of instances from which on an account's reconciles are spaced out as well: each goes through all
/// its instances.
const MANY: usize = 1000;
/// When to check again whether the prices have been read.
const AGAIN: Duration = Duration::from_secs(1);
/// Longest interval between two reconciles of an account with an open invoice, in case the clock is set.
const LONGEST: Duration = Duration::from_secs(60);
/// How often to look for invoices of Accounts that no longer exist.
const ORPHANS: Duration = Duration::from_secs(60);
/// How long an Account that was not closed must be missing before what it owes is invoiced: it may be on its way, in an import or a
/// restore.
const MISSING: Duration = Duration::from_mins(10);
/// Maximum number of steps in one reconcile. An account with very many pages continues in its next one, so that others get
/// their turn.
const MAX_STEPS: usize = 1000;
/// How long a deleted Account waits for its last events to be sent.
const FAREWELL: Duration = Duration::from_secs(30);

pub(super) struct Reconciler {
    pub(super) shared: Arc<Shared>,
    accounts: Store<Account>,
    /// Invoices that still need work.
    invoices: Store<Invoice>,
    /// What is known of each account, by namespace. Absent while the account is being reconciled, and after a failed write.
    known: Mutex<HashMap<String, State>>,
    /// When accounts with very many instances were last reconciled, by namespace.
    looked: Mutex<HashMap<String, Instant>>,
    backoffs: Backoffs,
}

/// What this process knows about an account.
pub(super) struct State {
    pub(super) account: String,
    pub(super) books: Books,
    /// Issued invoices and credit notes whose events are not settled.
    pub(super) issued: Vec<Invoice>,
    /// Credit notes that were asked for.
    pub(super) credits: Vec<Invoice>,
    /// When the entries were last written.
    pub(super) written: Option<Timestamp>,
}

impl State {
    /// Whether it has all credit notes that are asked for.
    fn knows(&self, unsettled: &Unsettled) -> bool {
        let mut asked_for = unsettled.iter().filter(|(_, is_asked_for)| **is_asked_for);
        let all = || self.credits.iter().chain(&self.issued);
        asked_for.all(|(name, _)| all().any(|known| known.name() == name))
    }
}

/// Whether the open invoice cannot be issued now. It stays, and is issued once it can be, though its account may be gone.
fn is_held(books: &Books) -> bool {
    books.invoices.values().any(|invoice| invoice.held().is_some())
}

impl Reconcile for Reconciler {
    fn class(&self, _: &ObjectRef) -> Class {
        Class::Normal
    }

    async fn reconcile(&self, object_ref: &ObjectRef, _: Class) -> Option<Duration> {
        let account = self.accounts.get(object_ref)?;
        let namespace = account.owned_namespace()?.to_owned();
        let uid = origin::uid(&account.metadata).to_owned();
        let begun = Instant::now();
        if self.shared.deps.instances.count(&namespace) >= MANY {
            let mut looked = self.looked.lock();
            if let Some(last) = looked.get(&namespace)
                && let Some(left) = TOGETHER.checked_sub(begun - *last).filter(|left| !left.is_zero())
            {
                return Some(left);
            }
            looked.insert(namespace.clone(), begun);
        } else {
            self.looked.lock().remove(&namespace);
        }
        let outcome = Box::pin(self.look(&account, &namespace, &uid)).await;
        let label = outcome.as_ref().map_or_else(CallError::label, |_| "ok");
        let metrics = &self.shared.deps.metrics;
        metrics.reconciled("Invoice", begun.elapsed(), label);
        match outcome {
            Ok(again) => {
                self.backoffs.reset(object_ref);
                again
            }
            // The stored objects differ from what was expected.
            Err(error) if error.is_conflict() || error.is_not_found() => Some(AFTER_CONFLICT),
            Err(error) => {
                let delay = self.backoffs.next(object_ref);
                tracing::warn!(account = key(&*account), %error, retry_in = ?delay, "cannot keep the books");
                Some(delay)
            }
        }
    }
}

impl Reconciler {
    pub(super) fn new(shared: Arc<Shared>, accounts: Store<Account>, invoices: Store<Invoice>) -> Self {
        Self {
            shared,
            accounts,
            invoices,
            known: Mutex::default(),
            looked: Mutex::default(),
            backoffs: Backoffs::default(),
        }
    }

    /// Issues and keeps the invoices of Accounts that vanished without being closed, because their finalizer was removed by hand.
    /// Runs until shutdown.
    pub(super) async fn close_orphans(&self, shutdown: CancellationToken) {
        let mut missing: HashMap<String, Instant> = HashMap::new();
        loop {
            tokio::select! {
                () = shutdown.cancelled() => return,
                () = tokio::time::sleep(ORPHANS) => {}
            }
            let accounts = self.accounts.state();
            let known: HashSet<&str> = accounts
                .iter()
                .map(|account| origin::uid(&account.metadata))
                .collect();
            self.known
                .lock()
                .retain(|_, state| known.contains(state.account.as_str()));
            self.looked.lock().retain(|_, looked| looked.elapsed() < ORPHANS);
            let mut orphans: HashMap<String, Arc<Invoice>> = HashMap::new();
            for invoice in self.invoices.state() {
                if !known.contains(invoice.spec.account.as_str()) {
                    orphans.insert(invoice.spec.account.clone(), invoice);
                }
            }
            missing.retain(|uid, _| orphans.contains_key(uid));
            let terms = self.shared.deps.catalogue.current();
            let may_issue = !terms.invoices.seller.name.is_empty();
            for (uid, invoice) in orphans {
                let since = *missing.entry(uid).or_insert_with(Instant::now);
                let was_closed = invoice.content().buyer.is_some();
                if !may_issue || !was_closed && since.elapsed() < MISSING {
                    continue;
                }
                let account = &invoice.spec.account_name;
                if let Err(error) = self.close_orphan(&invoice).await {
                    tracing::warn!(account, %error, "cannot close the invoices of an Account that is gone; will retry");
                }
            }
        }
    }

    /// Issues what is left of an Account that is gone. `invoice` is one of its invoices.
    async fn close_orphan(&self, invoice: &Invoice) -> Result<(), CallError> {
        let deps = &self.shared.deps;
        let Some(prices) = self.shared.prices.current() else {
            return Ok(());
        };
        // The watch leaves out an Account that does not match its schema; that one is there.
        let (uid, name) = (&invoice.spec.account, &invoice.spec.account_name);
        let accounts: Api<DeserializeGuard<Account>> = Api::all(deps.client.clone());
        let found = bounded(accounts.get_opt(name)).await?;
        if found.is_some_and(|found| found.0.map_or(true, |found| origin::uid(&found.metadata) == uid)) {
            return Ok(());
        }
        let mut account = Account::new(
            name,
            AccountSpec {
                namespace: Some(invoice.spec.account_namespace.clone()),
                ..AccountSpec::default()
            },
        );
        account.metadata.uid = Some(uid.to_owned());
        account.metadata.deletion_timestamp = Some(Time(self.shared.now()));
        let mut state = self.read(uid).await?;
        let nothing = Subjects::new();
        self.go_on(&mut state, &account, &nothing, &prices, (true, true))
            .await?;
        self.settle(&mut state, true).await.map(drop)
    }

    /// Reads what is stored of an account.
    async fn read(&self, uid: &str) -> Result<State, CallError> {
        let deps = &self.shared.deps;
        let unsettled = self.shared.unsettled(uid);
        books::read(&deps.client, &deps.namespace, uid, unsettled.into_keys()).await
    }

    /// Reconciles an account. Returns when to reconcile it again.
    async fn look(
        &self,
        account: &Account,
        namespace: &str,
        uid: &str,
    ) -> Result<Option<Duration>, CallError> {
        let deps = &self.shared.deps;
        let Some(prices) = self.shared.prices.current() else {
            return Ok(Some(AGAIN));
        };
        // The order matters: an instance that has gone from the first is already in the second.
        let instances = deps.instances.of(namespace);
        let gone = self.shared.gone(uid);
        let backups = if prices.has_backup_price() {
            let catalogue = deps.catalogue.current();
            let is_billed = |backup: &Arc<Backup>| {
                let source = backup.status.as_ref().and_then(|status| status.source.as_ref());
                source.is_some_and(|source| deps.settings.bills(&catalogue, &source.region))
            };
            let mut backups = deps.backups.within(namespace);
            backups.retain(is_billed);
            backups
        } else {
            Vec::new()
        };
        let subjects = billed(&instances, &gone, &backups, self.shared.now()).await;
        let is_deleting = account.metadata.deletion_timestamp.is_some();
        let unsettled = self.shared.unsettled(uid);
        // The watches may still show objects that the Account controller no longer saw.
        let closing_for = deps.ledger.closing_for(uid).filter(|_| instances.is_empty());
        let known = self.known.lock().remove(namespace);
        let mut state = match known {
            Some(state) if state.account == uid && state.knows(&unsettled) => state,
            _ if subjects.is_empty() && !is_deleting && unsettled.is_empty() => {
                return Ok(None);
            }
            _ => {
                let state = self.read(uid).await?;
                for invoice in &state.issued {
                    deps.outbox.recorded(&OutboxVersion::of(invoice), 0);
                }
                state
            }
        };
        let again = self
            .go_on(
                &mut state,
                account,
                &subjects,
                &prices,
                (closing_for.is_some(), false),
            )
            .await?;
        let is_resting = again.is_none();
        if is_resting {
            self.recorded(uid, &subjects, &gone);
        }
        let settled = self.settle(&mut state, false).await?;
        let step = if is_resting {
            self.next_step(&mut state, account, &subjects, &prices)
        } else {
            Step::Continue
        };
        let next = self.until_next(&state, &step);
        let mut again = [settled, again, next].into_iter().flatten().min();
        if let Some(closing_for) = closing_for
            && is_resting
            && subjects.is_empty()
            && (state.books.invoices.is_empty() || is_held(&state.books))
        {
            let has_news = !state.issued.is_empty() || deps.outbox.has_unattempted(namespace);
            let patience = FAREWELL.saturating_sub(closing_for);
            if !has_news || patience.is_zero() {
                self.settle(&mut state, true).await?;
                deps.ledger.closed(uid);
                return Ok(None);
            }
            again = Some(again.map_or(patience, |again| again.min(patience)));
        }
        let is_needed = is_deleting
            || !state.books.invoices.is_empty()
            || !state.issued.is_empty()
            || !subjects.is_empty();
        if is_needed {
            self.known.lock().insert(namespace.to_owned(), state);
        }
        Ok(again)
    }

    /// The next step, or when it is due.
    fn next_step(
        &self,
        state: &mut State,
        account: &Account,
        subjects: &Subjects<'_>,
        prices: &PriceHistory,
    ) -> Step {
        let terms = self.shared.deps.catalogue.current();
        next(
            &mut state.books,
            &self.facts(account, subjects, prices, &terms.invoices, (false, false)),
        )
    }

    fn facts<'a>(
        &self,
        account: &'a Account,
        subjects: &'a Subjects<'a>,
        prices: &'a PriceHistory,
        terms: &'a InvoiceTerms,
        (is_closing, is_gone): (bool, bool),
    ) -> Facts<'a> {
        Facts {
            holder: holder(account, is_gone, is_closing && subjects.is_empty()),
            subjects,
            prices,
            terms,
            max_lines: self.shared.deps.settings.max_lines,
            max_entries: MAX_ENTRIES,
            now: self.shared.now(),
        }
    }

    /// When the next step is due if nothing changes.
    fn until_next(&self, state: &State, step: &Step) -> Option<Duration> {
        match step {
            Step::Rest(Some(at)) => {
                let left = Duration::try_from(at.duration_since(self.shared.now())).unwrap_or_default();
                Some(left.min(LONGEST))
            }
            Step::Rest(None) if state.books.invoices.is_empty() => None,
            _ => Some(LONGEST),
        }
    }

    /// Does everything that is due. If it has to wait, returns when to continue.
    async fn go_on(
        &self,
        state: &mut State,
        account: &Account,
        subjects: &Subjects<'_>,
        prices: &PriceHistory,
        // Whether the Account is being closed, and whether it is gone.
        is_closing: (bool, bool),
    ) -> Result<Option<Duration>, CallError> {
        let deps = &self.shared.deps;
        let catalogue = deps.catalogue.current();
        state.books.look_again();
        let facts = || self.facts(account, subjects, prices, &catalogue.invoices, is_closing);
        if let Err(error) = self.credit(state, &facts()).await {
            // What is metered does not wait for it.
            tracing::warn!(account = name(account), %error, "cannot issue a credit note; will retry");
        }
        for _ in 0..MAX_STEPS {
            match next(&mut state.books, &facts()) {
                Step::Rest(_) => return Ok(None),
                Step::Continue => tokio::task::yield_now().await,
                Step::LookBack => {
                    let uid = origin::uid(&account.metadata);
                    let issued = books::issued(&deps.client, &deps.namespace, uid).await?;
                    state.books.issued_until = Some(books::last_end(&issued));
                }
                Step::Read { invoice, numbers } => {
                    for number in numbers {
                        let page = books::page(&deps.client, &deps.namespace, &invoice, number).await?;
                        if !state.books.load_page(page) {
                            // Another process has written it.
                            *state = self.read(origin::uid(&account.metadata)).await?;
                            break;
                        }
                    }
                }
                Step::Page { page, is_urgent } => {
                    if let Some(waits) = self.left(TOGETHER, state.written).filter(|_| !is_urgent) {
                        return Ok(Some(waits));
                    }
                    let written = self.put_page(*page).await?;
                    state.written = Some(deps.clock.now());
                    state.books.put_page(written);
                }
                Step::DeletePage(page) => {
                    self.delete(&*page).await?;
                    state.books.remove_page(&page);
                }
                Step::Create(invoice) => {
                    let written = self.put(*invoice).await?;
                    state.written = Some(deps.clock.now());
                    state.books.put_invoice(written);
                }
                Step::Replace { invoice, is_urgent } => {
                    if let Some(waits) = self.left(TOGETHER, state.written).filter(|_| !is_urgent) {
                        return Ok(Some(waits));
                    }
                    let written = self.put(*invoice).await?;
                    state.written = Some(deps.clock.now());
                    if written.is_issued() {
                        self.issued(&written).await;
                        state.issued.push(written.clone());
                    }
                    state.books.put_invoice(written);
                }
                Step::Delete(invoice) => {
                    self.delete(&*invoice).await?;
                    state.books.remove_invoice(&invoice);
                }
                Step::TakeNumber { invoice, year } => {
                    let found = state.books.invoices.values().find(|it| it.name() == invoice);
                    if let Some(found) = found {
                        let number = self.shared.numbers.take(found, year).await?;
                        state.books.numbers.insert(invoice, number);
                    }
                }
            }
        }
        Ok(Some(Duration::ZERO))
    }

    /// How much is left of this time since a moment. Nothing is if the clock was set back.
    fn left(&self, whole: Duration, since: Option<Timestamp>) -> Option<Duration> {
        let age = self.shared.deps.clock.now().duration_since(since?);
        let left = whole.saturating_sub(Duration::try_from(age).ok()?);
        (!left.is_zero()).then_some(left)
    }

    /// Tells the ledger that the end of everything that ended has been recorded.
    fn recorded(&self, account: &str, subjects: &Subjects<'_>, gone: &HashMap<String, Gone>) {
        let ledger = &self.shared.deps.ledger;
        let ended = subjects.iter().filter(|(uid, subject)| {
            let is_instance = matches!(subject.metered, Metered::Instance(_));
            is_instance && subject.ended.is_some() && !gone.contains_key(uid.as_ref())
        });
        ledger.ended(ended.map(|(uid, _)| uid.as_ref()));
        let mut all = self.shared.gone.lock();
        if let Some(of_account) = all.get_mut(account) {
            of_account.retain(|uid, _| !gone.contains_key(uid));
            if of_account.is_empty() {
                all.remove(account);
            }
        }
    }
}
