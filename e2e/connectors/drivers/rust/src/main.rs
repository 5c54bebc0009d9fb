//! The checks with tarantool-rs.
use std::{env, fmt::Debug, time::Duration, time::Instant};

use rmpv::Value;
use tarantool_rs::{Connection, Executor, ExecutorExt, IteratorType};
use tokio::time::{sleep, timeout};

type Check = Result<(), Box<dyn std::error::Error>>;
type Row = (u32, String, Value);

const KV: u32 = 512;

async fn connect(number: usize, password: &str) -> Result<Connection, tarantool_rs::Error> {
    let addresses = env::var("CONNECTOR_ADDRESSES").unwrap();
    let address = addresses.split(',').nth(number).unwrap().to_owned();
    let user = env::var("CONNECTOR_USER").unwrap();
    let mut builder = Connection::builder();
    builder.auth(&user, Some(password)).timeout(Some(Duration::from_secs(5)));
    builder.build(address).await
}

fn report(name: &str, result: Check) {
    match result {
        Ok(()) => println!("{name}: ok"),
        Err(problem) => println!("{name}: failed: {}", problem.to_string().replace('\n', " ")),
    }
}

fn expect<T: Debug>(got: T, wanted: &str) -> Check {
    let got = format!("{got:?}");
    if got == wanted { Ok(()) } else { Err(format!("{got} instead of {wanted}").into()) }
}

fn row(number: u32, name: &str, value: Value) -> Row {
    (number, name.to_owned(), value)
}

async fn read(connection: &impl ExecutorExt, number: u32) -> Result<Vec<Row>, tarantool_rs::Error> {
    connection.select(KV, 0, None, None, Some(IteratorType::Eq), (number,)).await
}

async fn log_in() -> Check {
    match timeout(Duration::from_secs(10), connect(0, "wrong")).await {
        Ok(Ok(_)) => Err("a wrong password is accepted".into()),
        _ => Ok(()),
    }
}

async fn types(connection: &Connection) -> Check {
    let nested = Value::Array(vec!["nested".into()]);
    let map = Value::Map(vec![("key".into(), "value".into())]);
    let bytes = Value::Binary(vec![0, 255]);
    for value in [
        Value::Nil, true.into(), false.into(), u64::MAX.into(), i64::MIN.into(), 3.5.into(),
        "text".into(), bytes, nested, map,
    ] {
        connection.replace(KV, row(1, "types", value.clone())).await?;
        let found = read(connection, 1).await?;
        expect(&found[0].2, &format!("{value:?}"))?;
    }
    Ok(())
}

async fn requests(connection: &Connection) -> Check {
    for number in 10..15 {
        connection.insert(KV, row(number, "row", number.into())).await?;
    }
    connection.update(KV, 0, (10,), (("+", 2, 5),)).await?;
    // Its upsert() sends REPLACE (0.0.10), to every server.
    connection.update(KV, 0, (11,), (("+", 2, 5),)).await?;
    connection.delete(KV, 0, (12,)).await?;
    let found: Vec<(u32, String, u32)> =
        connection.select(KV, 0, Some(2), Some(1), Some(IteratorType::Ge), (10,)).await?;
    expect(found, r#"[(11, "row", 16), (13, "row", 13)]"#)
}

async fn errors(connection: &Connection) -> Check {
    match connection.insert(KV, row(10, "row", 0.into())).await {
        Err(tarantool_rs::Error::Response(answer)) => expect(answer.code, "3"),
        other => Err(format!("{other:?} for a duplicate key").into()),
    }
}

async fn names(connection: &Connection) -> Check {
    let space = connection.space("kv").await?.ok_or("no space kv")?;
    let index = space.index("name").ok_or("no index name")?;
    let found: Vec<Row> = index.select(Some(1), None, Some(IteratorType::Eq), ("types",)).await?;
    expect(found.len(), "1")
}

async fn transactions(connection: &Connection) -> Check {
    for number in 0..2u32 {
        let transaction = connection.transaction().await?;
        transaction.replace(KV, row(30, "stream", number.into())).await?;
        expect(read(connection, 30).await?.len(), "0")?;
        if number == 0 { transaction.rollback().await? } else { transaction.commit().await? }
    }
    expect(read(connection, 30).await?.len(), "1")
}

async fn console(connection: &Connection) -> Check {
    let answer: bool = connection.eval("return true", ()).await?.decode_first()?;
    expect(answer, "true")?;
    let _: Value = connection.call("box.info", ()).await?.decode_first()?;
    Ok(())
}

async fn failover(mut connection: Connection, password: &str) -> Check {
    let (end, mut last, mut after, mut member) = (Instant::now(), String::new(), 0, 0);
    for number in 1..100_000u32 {
        if after == 50 || end.elapsed() > Duration::from_secs(40) {
            break;
        }
        let write = connection.replace(KV, row(1000 + number, "failover", number.into()));
        match timeout(Duration::from_secs(5), write).await {
            Ok(Ok(_)) if last.is_empty() => sleep(Duration::from_millis(5)).await,
            Ok(Ok(_)) => after += 1,
            failed => {
                last = format!("{failed:?}");
                after = 0;
                sleep(Duration::from_millis(20)).await;
                member = (member + 1) % 3;
                if let Ok(other) = connect(member, password).await {
                    connection = other;
                }
            }
        }
        if number == 20 {
            println!("failover: ready");
        }
    }
    if after == 50 { Ok(()) } else { Err(format!("no writes after the failover: {last}").into()) }
}

#[tokio::main]
async fn main() -> Check {
    let password = env::var("CONNECTOR_PASSWORD")?;
    let connection = connect(0, &password).await?;
    report("log in", log_in().await);
    report("types", types(&connection).await);
    report("requests", requests(&connection).await);
    report("errors", errors(&connection).await);
    report("names", names(&connection).await);
    report("transactions", transactions(&connection).await);
    report("console", console(&connection).await);
    report("failover", failover(connection, &password).await);
    Ok(())
}
