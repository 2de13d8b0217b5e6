//! The console's list: a page of 20 out of 10,000 instances, as requested by a browser that has signed in, compared with the same
//! list as JSON, from which the page is rendered. Also what a browser loads on its first visit: the page and its files,
//! compressed.

use crate::{
    Result,
    account::Account,
    cluster::Cluster,
    convergence, fill,
    latencies::as_f64,
    load::{CONNECTIONS, Client, Extent},
    processes::processor_time,
    product::Product,
    samples::{self, Samples, Unit},
    say,
    sizes::Sizes,
    table::{Aim, Table},
    wire::Target,
};

const FIRST: &str = "first";
const PAGE: &str = "/console/instances";
const JSON: &str = "/v1/instances?limit=20";
/// The prefix of the paths of a page's files.
const FILES: &str = "/console/assets/";
/// Maximum CPU time for the page, in milliseconds.
const AIM_COST: Aim = Aim::AtMost(2.0);
/// Maximum size of the first visit, in kilobytes.
const AIM_WEIGHT: Aim = Aim::AtMost(40.0);

/// A browser that has signed in.
struct Visitor {
    target: Target,
    cookie: String,
}

impl Visitor {
    async fn sign_in(product: &Product, account: &Account) -> Result<Self> {
        let target = product.facade(&account.key)?;
        let address = target.address();
        let form = format!("key={}", account.key);
        let request = format!(
            "POST /console/sign-in HTTP/1.1\r\nhost: {address}\r\norigin: http://{address}\r\n\
             content-type: application/x-www-form-urlencoded\r\ncontent-length: {}\r\n\r\n{form}",
            form.len()
        );
        let mut connection = target.connect().await?;
        let status = connection.exchange(request.as_bytes()).await?;
        let answer = connection.answer();
        let cookie = answer.headers().find(|(name, _)| name == "set-cookie");
        let cookie = cookie.and_then(|(_, value)| value.split(';').next());
        Ok(Self {
            cookie: cookie
                .ok_or_else(|| format!("signing in was answered with {status}"))?
                .to_owned(),
            target,
        })
    }

    fn request(&self, path: &str, coding: &str) -> String {
        let (address, cookie) = (self.target.address(), &self.cookie);
        format!(
            "GET {path} HTTP/1.1\r\nhost: {address}\r\ncookie: {cookie}\r\naccept-encoding: {coding}\r\n\r\n"
        )
    }

    async fn load(&self, path: &str, coding: &str) -> Result<Vec<u8>> {
        let mut connection = self.target.connect().await?;
        let status = connection.exchange(self.request(path, coding).as_bytes()).await?;
        if status != 200 {
            return Err(format!("{path} was answered with {status}").into());
        }
        Ok(connection.answer().body)
    }

    /// Size of the page and its files in bytes, compressed.
    async fn weight(&self) -> Result<usize> {
        let page = String::from_utf8(self.load(PAGE, "identity").await?)?;
        let mut weight = self.load(PAGE, "gzip").await?.len();
        let paths = page.split('"').filter(|path| path.starts_with(FILES));
        for path in paths {
            weight += self.load(path, "gzip").await?.len();
        }
        Ok(weight)
    }
}

/// Milliseconds of the server's CPU time per request.
async fn cost(product: &Product, target: &Target, request: String, sizes: &Sizes) -> Result<f64> {
    let extent = Extent::For {
        warm_up: sizes.warm_up,
        measured: sizes.measured,
    };
    let before = processor_time(product.pid)?;
    let measured = Client::repeating(target, CONNECTIONS, request, extent)
        .run()
        .await?;
    let cost = (processor_time(product.pid)? - before) * 1e3 / as_f64(measured.asked);
    say(&format!(
        "  {:.0} requests/s, {cost:.2} ms of CPU time each",
        measured.rate()
    ));
    Ok(cost)
}

/// Measures both.
pub async fn measure(table: &mut Table, sizes: &Sizes) -> Result<()> {
    let count = sizes.large;
    let cluster = Cluster::start().await?;
    let mut product = Product::run(&cluster).await?;
    let account = Account::create(&cluster, &product).await?;
    convergence::converge(&cluster, &product, &account, FIRST, sizes.few).await?;
    let template = convergence::settled_instance(&cluster, &product, &account, FIRST).await?;
    product.stop().await?;
    fill::instances(&cluster, &account, &template, 0, count - sizes.few).await?;

    let mut product = Product::api(&cluster).await?;
    let visitor = Visitor::sign_in(&product, &account).await?;
    let target = &visitor.target;
    let (mut pages, mut lists) = (Vec::new(), Vec::new());
    for _ in 0..sizes.rounds {
        pages.push(cost(&product, target, visitor.request(PAGE, "gzip"), sizes).await?);
        lists.push(cost(&product, target, target.request("GET", JSON, None), sizes).await?);
    }
    let pages: Samples = pages.into_iter().collect();
    let what = format!("CPU time of the console's list, 20 of {count} instances");
    table.value(&what, &pages, samples::CORE_MILLIS, Some(AIM_COST));
    table.compare(
        "    : the same list as JSON",
        &pages,
        &lists.into_iter().collect(),
        samples::CORE_MILLIS,
        None,
    );
    let kilobytes = as_f64(visitor.weight().await?.try_into()?) / 1e3;
    table.value(
        "first visit to it: the page, styles and scripts, compressed",
        &kilobytes.into(),
        Unit(" kB", 1),
        Some(AIM_WEIGHT),
    );
    product.stop().await?;
    cluster.stop().await
}
