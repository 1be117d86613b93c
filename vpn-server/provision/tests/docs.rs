//! The schema of the parameters is generated and committed.

use std::path::Path;

#[test]
fn schema_is_up_to_date() {
    let document =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/schema/vpn-provision.json");
    settings::check_doc(
        &document,
        &settings::schema::<vpn_provision::ProvisionFile>(),
    );
}
