/* The list of devices, and what a device and its port say. */
#include "rule.h"
#include "pair.h"

/* Of infiniband/driver.h, which programs declare for themselves. */
int ibv_read_sysfs_file(const char *dir, const char *file, char *buf, size_t size);

static void list_rules(void)
{
	int count = -1;
	struct ibv_device **one = ibv_get_device_list(&count), **two = ibv_get_device_list(NULL);

	CHECK("device-list", one && two && count > 0 && !one[count]);
	for (int i = 0; i < count; i++)
		CHECK("device-list", one[i] == two[i]);
	ok("device-list");

	/* One that was opened stays when the list goes. */
	struct ibv_context *context = ibv_open_device(one[0]);
	struct ibv_device *device = one[0];

	CHECK("device-outlives-list", context && context->device == device);
	ibv_free_device_list(one);
	ibv_free_device_list(two);
	CHECK("device-outlives-list", strlen(ibv_get_device_name(device)) > 0);
	CHECK("device-outlives-list", strcmp(ibv_get_device_name(device), device->name) == 0);
	CHECK("device-outlives-list", ibv_close_device(context) == 0);
	ok("device-outlives-list");
}

static void guid_rules(struct ibv_context *context)
{
	struct ibv_device_attr attr;
	char text[32], expected[32];
	uint64_t guid = be64toh(ibv_get_device_guid(context->device));

	CHECK("device-guid", ibv_query_device(context, &attr) == 0);
	CHECK("device-guid", guid != 0 && be64toh(attr.node_guid) == guid);
	ok("device-guid");

	snprintf(expected, sizeof expected, "%04x:%04x:%04x:%04x", (unsigned)(guid >> 48) & 0xffff,
		 (unsigned)(guid >> 32) & 0xffff, (unsigned)(guid >> 16) & 0xffff, (unsigned)guid & 0xffff);
	int length = ibv_read_sysfs_file(context->device->ibdev_path, "node_guid", text, sizeof text);
	CHECK("device-sysfs", length == (int)strlen(expected) && strcmp(text, expected) == 0);
	length = ibv_read_sysfs_file(context->device->ibdev_path, "ports/1/link_layer", text, sizeof text);
	CHECK("device-sysfs", length == 8 && strcmp(text, "Ethernet") == 0);
	CHECK("device-sysfs", ibv_read_sysfs_file(context->device->ibdev_path, "ports/1/link_layer", text, 4) == -1);
	FAILS("device-sysfs", ibv_read_sysfs_file(context->device->ibdev_path, "no_such_file", text, sizeof text),
	      ENOENT);
	ok("device-sysfs");
}

static void attribute_rules(struct ibv_context *context)
{
	struct ibv_device_attr attr;
	struct ibv_device_attr_ex extended;
	struct ibv_query_device_ex_input later = { .comp_mask = 1 };

	CHECK("device-attr-ex", ibv_query_device(context, &attr) == 0);
	memset(&extended, 0xaa, sizeof extended);
	CHECK("device-attr-ex", ibv_query_device_ex(context, NULL, &extended) == 0);
	CHECK("device-attr-ex", memcmp(&attr.node_guid, &extended.orig_attr.node_guid, sizeof attr.node_guid) == 0);
	CHECK("device-attr-ex", attr.max_qp == extended.orig_attr.max_qp && attr.max_cqe == extended.orig_attr.max_cqe);
	CHECK("device-attr-ex", attr.phys_port_cnt == 1 && extended.tm_caps.max_num_tags == 0);
	CHECK("device-attr-ex", ibv_query_device_ex(context, &later, &extended) == EINVAL);
	ok("device-attr-ex");
}

static void port_rules(struct ibv_context *context)
{
	struct ibv_port_attr attr, old;

	CHECK("port-attr", ibv_query_port(context, 1, &attr) == 0);
	CHECK("port-attr", attr.state == IBV_PORT_ACTIVE && attr.link_layer == IBV_LINK_LAYER_ETHERNET);
	CHECK("port-attr", attr.max_mtu == IBV_MTU_4096 && attr.active_mtu >= IBV_MTU_256);
	CHECK("port-attr", attr.gid_tbl_len > 0 && attr.pkey_tbl_len == 1 && attr.lid == 0);
	ok("port-attr");

	/* The function itself, as programs call it that were built with an old header. */
	memset(&old, 0xaa, sizeof old);
#undef ibv_query_port
	CHECK("port-attr-old", ibv_query_port(context, 1, (struct _compat_ibv_port_attr *)&old) == 0);
	CHECK("port-attr-old", memcmp(&attr, &old, offsetof(struct ibv_port_attr, port_cap_flags2)) == 0);
	CHECK("port-attr-old", old.port_cap_flags2 == 0xaaaa);
	ok("port-attr-old");

	CHECK("port-einval", ibv_query_port(context, 0, (struct _compat_ibv_port_attr *)&old) == EINVAL);
	CHECK("port-einval", ibv_query_port(context, 2, (struct _compat_ibv_port_attr *)&old) == EINVAL);
	ok("port-einval");
}

static void gid_rules(struct ibv_context *context)
{
	union ibv_gid wanted = base_gid(), gid, none = { .raw = { 0 } };
	struct ibv_gid_entry entries[256], entry;
	struct ibv_port_attr attr;
	ssize_t count = ibv_query_gid_table(context, entries, 256, 0);
	int used[4096] = { 0 };

	CHECK("gid-table", count > 0);
	CHECK("gid-table", ibv_query_gid(context, 1, port_sgid, &gid) == 0 && !memcmp(&gid, &wanted, sizeof gid));
	CHECK("gid-table", ibv_query_gid_table(context, entries, count, 0) == count);
	CHECK("gid-table", ibv_query_gid_table(context, entries, count - 1, 0) == -EINVAL);
	ok("gid-table");

	CHECK("gid-entry", ibv_query_gid_ex(context, 1, port_sgid, &entry, 0) == 0);
	CHECK("gid-entry", !memcmp(&entry.gid, &wanted, sizeof gid) && entry.gid_type == IBV_GID_TYPE_ROCE_V2);
	CHECK("gid-entry", entry.port_num == 1 && (int)entry.gid_index == port_sgid && entry.ndev_ifindex != 0);
	CHECK("gid-entry", ibv_query_gid_ex(context, 1, port_sgid, &entry, 1) == EINVAL);
	ok("gid-entry");

	struct verbs_context *table = verbs_get_ctx_op(context, query_port);
	CHECK("gid-empty", table && table->query_port(context, 1, &attr, sizeof attr) == 0);
	CHECK("gid-empty", attr.gid_tbl_len <= 4096);
	for (ssize_t i = 0; i < count; i++)
		used[entries[i].gid_index] = 1;
	for (int i = 0; i < attr.gid_tbl_len; i++) {
		if (used[i])
			continue;
		CHECK("gid-empty", ibv_query_gid(context, 1, i, &gid) == 0 && !memcmp(&gid, &none, sizeof gid));
		CHECK("gid-empty", ibv_query_gid_ex(context, 1, i, &entry, 0) == ENODATA);
	}
	FAILS("gid-empty", ibv_query_gid(context, 1, attr.gid_tbl_len, &gid), EINVAL);
	CHECK("gid-empty", ibv_query_gid_ex(context, 1, attr.gid_tbl_len, &entry, 0) == EINVAL);
	ok("gid-empty");
}

static void pkey_rules(struct ibv_context *context)
{
	uint16_t pkey;

	CHECK("pkey", ibv_query_pkey(context, 1, 0, &pkey) == 0 && pkey == 0xffff);
	CHECK("pkey", ibv_get_pkey_index(context, 1, 0xffff) == 0);
	CHECK("pkey", ibv_get_pkey_index(context, 1, htobe16(0x1234)) == -1);
	FAILS("pkey", ibv_query_pkey(context, 1, 1, &pkey), ENOENT);
	ok("pkey");
}

static void name_rules(void)
{
	CHECK("names", !strcmp(ibv_node_type_str(IBV_NODE_CA), "InfiniBand channel adapter"));
	CHECK("names", !strcmp(ibv_node_type_str(-1), "unknown"));
	CHECK("names", !strcmp(ibv_port_state_str(IBV_PORT_ACTIVE), "active"));
	CHECK("names", !strcmp(ibv_event_type_str(IBV_EVENT_COMM_EST), "communication established"));
	CHECK("names", !strcmp(ibv_wc_status_str(IBV_WC_RETRY_EXC_ERR), "transport retry counter exceeded"));
	CHECK("names", !strcmp(ibv_wc_status_str(99), "unknown"));
	CHECK("names", ibv_rate_to_mult(IBV_RATE_10_GBPS) == 4 && mult_to_ibv_rate(4) == IBV_RATE_10_GBPS);
	CHECK("names", ibv_rate_to_mult(IBV_RATE_100_GBPS) == -1 && mult_to_ibv_rate(3) == IBV_RATE_MAX);
	CHECK("names", ibv_rate_to_mbps(IBV_RATE_100_GBPS) == 103125 && mbps_to_ibv_rate(103125) == IBV_RATE_100_GBPS);
	ok("names");
}

/* What the device has not is told so, and nothing crashes. */
static void absent_rules(struct ibv_context *context)
{
	struct ibv_alloc_dm_attr dm = { .length = 64 };
	struct ibv_wq_init_attr wq = { .wq_type = IBV_WQT_RQ };
	struct ibv_counters_init_attr counters = { 0 };

	errno = 0;
	CHECK("device-absent", !ibv_alloc_dm(context, &dm) && errno == EOPNOTSUPP);
	errno = 0;
	CHECK("device-absent", !ibv_create_wq(context, &wq) && errno == EOPNOTSUPP);
	errno = 0;
	CHECK("device-absent", !ibv_create_counters(context, &counters) && errno == EOPNOTSUPP);
	ok("device-absent");
}

int main(int argc, char **argv)
{
	struct ibv_context *context;

	start(argc, argv);
	PART(list_rules());
	context = open_port("device-open");
	ok("device-open");
	PART(guid_rules(context));
	PART(attribute_rules(context));
	PART(port_rules(context));
	PART(gid_rules(context));
	PART(pkey_rules(context));
	PART(name_rules());
	PART(absent_rules(context));
	CHECK("device-close", ibv_close_device(context) == 0);
	ok("device-close");
	return 0;
}
