/* Peers that do not answer, addresses and interfaces that go away, in a network of the program's own. */
#include "private.h"

static void run(const char *rule, const char *command)
{
	if (system(command) != 0)
		FAIL(rule, "%s", command);
}

static void loses_its_address(void)
{
	const char *rule = "event-addr-change";
	struct sockaddr_in in = { .sin_family = AF_INET };
	struct rdma_event_channel *channel = new_channel(rule);
	struct rdma_cm_id *id = new_id(rule, channel, RDMA_PS_TCP);
	struct rdma_cm_event *event;

	run(rule, "ip address add 127.0.0.77/8 dev lo");
	inet_pton(AF_INET, "127.0.0.77", &in.sin_addr);
	for (int i = 0; i < 500 && rdma_bind_addr(id, (struct sockaddr *)&in); i++)
		usleep(10000);
	CHECK(rule, rdma_get_src_port(id) != 0);
	CHECK(rule, rdma_listen(id, 1) == 0);
	run(rule, "ip address del 127.0.0.77/8 dev lo");
	event = event_of(rule, channel, RDMA_CM_EVENT_ADDR_CHANGE);
	CHECK(rule, event->id == id && event->status == 0);
	CHECK(rule, rdma_ack_cm_event(event) == 0);
	destroy(rule, id);
	rdma_destroy_event_channel(channel);
	ok(rule);
}

static void loses_its_interface(void)
{
	const char *rule = "event-removal";
	struct sockaddr_in in = { .sin_family = AF_INET };
	struct rdma_event_channel *channel = new_channel(rule);
	struct rdma_cm_id *id = new_id(rule, channel, RDMA_PS_TCP);
	struct rdma_cm_event *event;

	run(rule, "ip link add near type veth peer name far && ip address add 10.99.0.1/24 dev near && ip link set near up && "
		  "ip link set far up");
	inet_pton(AF_INET, "10.99.0.1", &in.sin_addr);
	for (int i = 0; i < 500 && rdma_bind_addr(id, (struct sockaddr *)&in); i++)
		usleep(10000);
	CHECK(rule, id->verbs != NULL);
	CHECK(rule, rdma_listen(id, 1) == 0);
	run(rule, "ip link del near");
	/* Its address goes with it, and may be told first. */
	event = NULL;
	CHECK(rule, readable(channel->fd, LONG) && rdma_get_cm_event(channel, &event) == 0);
	if (event->event == RDMA_CM_EVENT_ADDR_CHANGE) {
		CHECK(rule, rdma_ack_cm_event(event) == 0);
		event = event_of(rule, channel, RDMA_CM_EVENT_DEVICE_REMOVAL);
	}
	CHECK(rule, event->event == RDMA_CM_EVENT_DEVICE_REMOVAL && event->id == id);
	CHECK(rule, rdma_ack_cm_event(event) == 0);
	errno = 0;
	CHECK(rule, rdma_listen(id, 1) == -1);
	CHECK(rule, rdma_destroy_id(id) == 0);
	rdma_destroy_event_channel(channel);
	ok(rule);
}

/* An option of the soft host: how long connecting may take altogether. */
#define LEVEL_OARLOCK 0x6f61726c
#define CONNECT_DEADLINE 3

static void is_not_answered(void)
{
	const char *rule = "connect-unreachable";
	struct rdma_event_channel *channel = new_channel(rule), *other = new_channel(rule);
	struct rdma_cm_id *listener = new_listener(rule, channel, RDMA_PS_TCP);
	struct rdma_cm_id *id = new_id(rule, other, RDMA_PS_TCP);
	uint32_t milliseconds = 200;
	struct rdma_cm_event *event;

	CHECK(rule, rdma_set_option(id, LEVEL_OARLOCK, CONNECT_DEADLINE, &milliseconds, sizeof milliseconds) == 0);
	resolve(rule, id, port_of(listener));
	new_qp(rule, id);
	CHECK(rule, rdma_connect(id, NULL) == 0);
	event = event_of(rule, other, RDMA_CM_EVENT_UNREACHABLE);
	CHECK(rule, event->status == -ETIMEDOUT);
	CHECK(rule, rdma_ack_cm_event(event) == 0);
	destroy(rule, id);
	id = new_id(rule, NULL, RDMA_PS_TCP);
	CHECK(rule, rdma_set_option(id, LEVEL_OARLOCK, CONNECT_DEADLINE, &milliseconds, sizeof milliseconds) == 0);
	CHECK(rule, rdma_resolve_addr(id, NULL, address(port_of(listener)), 2000) == 0);
	CHECK(rule, rdma_resolve_route(id, 2000) == 0);
	new_qp(rule, id);
	FAILS(rule, rdma_connect(id, NULL), ETIMEDOUT);
	CHECK(rule, id->event != NULL && id->event->event == RDMA_CM_EVENT_UNREACHABLE);
	destroy(rule, id);
	rdma_destroy_event_channel(other);
	rdma_destroy_event_channel(channel);
	ok(rule);
}

int main(int argc, char **argv)
{
	start(argc, argv);
	own_network("event-addr-change");
	is_not_answered();
	loses_its_address();
	loses_its_interface();
	return 0;
}
