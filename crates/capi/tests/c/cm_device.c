/* A program that is shown one device, by OARLOCK_DEVICE, in a network of its own with three. */
#include "private.h"

static void run(const char *rule, const char *command)
{
	if (system(command) != 0)
		FAIL(rule, "%s", command);
}

static struct sockaddr *at(const char *text, uint16_t port)
{
	static struct sockaddr_in in;

	in = (struct sockaddr_in){ .sin_family = AF_INET, .sin_port = htons(port) };
	inet_pton(AF_INET, text, &in.sin_addr);
	return (struct sockaddr *)&in;
}

static void has_one_device(void)
{
	const char *rule = "device-only";
	struct ibv_context **opened;
	struct ibv_device **list;
	int n;

	list = ibv_get_device_list(&n);
	CHECK(rule, list && n == 1 && !strcmp(ibv_get_device_name(list[0]), "soft_near"));
	CHECK(rule, access(list[0]->ibdev_path, F_OK) == 0);
	ibv_free_device_list(list);
	FAILS(rule, access("/sys/class/infiniband/soft_far/node_guid", F_OK), ENOENT);
	CHECK(rule, access("/sys/class/infiniband/soft_near/node_guid", R_OK) == 0);
	opened = rdma_get_devices(&n);
	CHECK(rule, opened && n == 1 && !strcmp(ibv_get_device_name(opened[0]->device), "soft_near"));
	rdma_free_devices(opened);
	ok(rule);
}

static void binds_to_no_other(void)
{
	const char *rule = "device-only-bind";
	struct rdma_event_channel *channel = new_channel(rule);
	struct rdma_cm_id *id = new_id(rule, channel, RDMA_PS_TCP);

	FAILS(rule, rdma_bind_addr(id, at("10.98.0.1", 0)), ENODEV);
	CHECK(rule, !id->verbs && rdma_get_src_port(id) == 0);
	FAILS(rule, rdma_bind_addr(id, at("10.97.0.1", 0)), EADDRNOTAVAIL);
	CHECK(rule, rdma_bind_addr(id, at("10.99.0.1", 0)) == 0);
	CHECK(rule, id->verbs && !strcmp(ibv_get_device_name(id->verbs->device), "soft_near"));
	destroy(rule, id);
	rdma_destroy_event_channel(channel);
	ok(rule);
}

static void resolves_through_no_other(void)
{
	const char *rule = "device-only-resolve";
	struct rdma_event_channel *channel = new_channel(rule);
	struct rdma_cm_id *id = new_id(rule, channel, RDMA_PS_TCP), *alone;
	struct rdma_cm_event *event;
	struct rdma_addrinfo hints = { .ai_port_space = RDMA_PS_TCP }, *found;

	/* From another device's address, and to the loopback device. */
	FAILS(rule, rdma_resolve_addr(id, at("10.98.0.1", 0), address(7), 2000), ENODEV);
	FAILS(rule, rdma_resolve_addr(id, NULL, address(7), 2000), ENODEV);
	/* By a route that leads there. */
	CHECK(rule, rdma_resolve_addr(id, NULL, at("10.98.0.2", 7), 2000) == 0);
	event = event_of(rule, channel, RDMA_CM_EVENT_ADDR_ERROR);
	CHECK(rule, event->id == id && event->status == -ENODEV && !id->verbs);
	CHECK(rule, rdma_ack_cm_event(event) == 0);
	destroy(rule, id);
	alone = new_id(rule, NULL, RDMA_PS_TCP);
	FAILS(rule, rdma_resolve_addr(alone, NULL, at("10.98.0.2", 7), 2000), ENODEV);
	destroy(rule, alone);
	CHECK(rule, rdma_getaddrinfo("10.98.0.2", "7", &hints, &found) == 0);
	FAILS(rule, rdma_create_ep(&alone, found, NULL, NULL), ENODEV);
	rdma_freeaddrinfo(found);
	/* The device's own addresses, and what is reached through it. */
	id = new_id(rule, channel, RDMA_PS_TCP);
	CHECK(rule, rdma_resolve_addr(id, at("10.99.0.1", 0), at("10.99.0.1", 7), 2000) == 0);
	expect(rule, channel, RDMA_CM_EVENT_ADDR_RESOLVED);
	CHECK(rule, !strcmp(ibv_get_device_name(id->verbs->device), "soft_near"));
	destroy(rule, id);
	rdma_destroy_event_channel(channel);
	ok(rule);
}

/* A client that is shown every device asks at an address; 0 once it is connected, else the status of its rejection. */
static int asked_at(const char *rule, const char *text, uint16_t port)
{
	struct rdma_event_channel *channel = new_channel(rule);
	struct rdma_cm_id *id = new_id(rule, channel, RDMA_PS_TCP);
	struct rdma_cm_event *event;
	int status;

	CHECK(rule, rdma_resolve_addr(id, NULL, at(text, port), 2000) == 0);
	expect(rule, channel, RDMA_CM_EVENT_ADDR_RESOLVED);
	CHECK(rule, rdma_resolve_route(id, 2000) == 0);
	expect(rule, channel, RDMA_CM_EVENT_ROUTE_RESOLVED);
	new_qp(rule, id);
	CHECK(rule, rdma_connect(id, NULL) == 0);
	CHECK(rule, readable(channel->fd, LONG) && rdma_get_cm_event(channel, &event) == 0);
	CHECK(rule, event->event == RDMA_CM_EVENT_ESTABLISHED || event->event == RDMA_CM_EVENT_REJECTED);
	status = event->status;
	CHECK(rule, (event->event == RDMA_CM_EVENT_ESTABLISHED) == (status == 0));
	CHECK(rule, rdma_ack_cm_event(event) == 0);
	destroy(rule, id);
	rdma_destroy_event_channel(channel);
	return status;
}

static void listens_on_no_other(int to_client, int from_client)
{
	const char *rule = "device-only-listen";
	struct rdma_event_channel *channel = new_channel(rule);
	struct rdma_cm_id *listener = new_id(rule, channel, RDMA_PS_TCP);
	struct rdma_cm_event *event;
	uint16_t port;
	char done;

	CHECK(rule, rdma_bind_addr(listener, at("0.0.0.0", 0)) == 0 && rdma_listen(listener, 4) == 0);
	port = port_of(listener);
	CHECK(rule, write(to_client, &port, sizeof port) == sizeof port);
	/* Requests at other devices' addresses are rejected, and the program learns of the last one only. */
	event = event_of(rule, channel, RDMA_CM_EVENT_CONNECT_REQUEST);
	CHECK(rule, !strcmp(ibv_get_device_name(event->id->verbs->device), "soft_near"));
	new_qp(rule, event->id);
	CHECK(rule, rdma_accept(event->id, NULL) == 0);
	CHECK(rule, read(from_client, &done, 1) == 1 && done == 'y');
	CHECK(rule, rdma_ack_cm_event(event) == 0);
	/* The rest ends with the process. */
	ok(rule);
}

int main(int argc, char **argv)
{
	const char *rule = "device-only-listen";
	int there[2], back[2], status;
	pid_t client;

	start(argc, argv);
	own_network(rule);
	run(rule, "ip link add near type veth peer name far");
	run(rule, "ip address add 10.99.0.1/24 dev near && ip address add 10.98.0.1/24 dev far");
	run(rule, "ip link set near up && ip link set far up");
	CHECK(rule, pipe(there) == 0 && pipe(back) == 0);
	client = fork();
	CHECK(rule, client >= 0);
	if (client == 0) {
		uint16_t port;

		CHECK(rule, read(there[0], &port, sizeof port) == sizeof port);
		CHECK(rule, asked_at(rule, "10.98.0.1", port) != 0);
		CHECK(rule, asked_at(rule, rule_text, port) != 0);
		CHECK(rule, asked_at(rule, "10.99.0.1", port) == 0);
		CHECK(rule, write(back[1], "y", 1) == 1);
		_exit(0);
	}
	CHECK(rule, setenv("OARLOCK_DEVICE", "soft_near", 1) == 0);
	PART(has_one_device());
	PART(binds_to_no_other());
	PART(resolves_through_no_other());
	PART(listens_on_no_other(there[1], back[0]));
	CHECK(rule, waitpid(client, &status, 0) == client && status == 0);
	return 0;
}
