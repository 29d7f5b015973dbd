-- Receivers and deliveries of the SQL tests. A receiver is named by the text of its URL's token.

create function test.digest(p_token text) returns bytea language sql immutable as $$ select sha256(convert_to(p_token, 'UTF8')) $$;

-- A new receiver: its id.
create function test.receiver(p_token text, p_endpoint text default 'a', p_source_type text default 'github', p_queue text default 'q') returns text language sql as $$
    select switchboard.create_webhook(test.endpoint(p_endpoint), p_source_type, p_queue, '\xaa', test.digest(p_token)) ->> 'webhook_id'
$$;

-- A delivery as the shell passes it on when it has verified it; what a delivery becomes.
create function test.deliver(
    p_token text, p_body text default '{}', p_delivery_id text default null, p_event text default 'push', p_document text default null, p_content_type text default 'application/json')
returns jsonb language sql as $$
    select switchboard.receive_delivery(test.digest(p_token), p_delivery_id, p_event, '{"x": "y"}', convert_to(p_body, 'UTF8'), p_content_type, p_document, '{"scheme": "github", "secret": "current"}')
$$;

-- The one todo of that answer, on that endpoint: its id.
create function test.made(p_answer jsonb, p_endpoint text default 'a') returns text language sql stable as $$
    select t ->> 'id' from jsonb_array_elements(p_answer -> 'todos') t where t ->> 'endpoint_id' = test.endpoint(p_endpoint)
$$;

-- What an answer made, as names, so that it can be compared: {a q new, a2 q old}.
create function test.outcomes(p_answer jsonb) returns text[] language sql stable as $$
    select array_agg(format('%s %s %s', e.name, t ->> 'queue', case when (t ->> 'created')::boolean then 'new' else 'old' end) order by e.name)
    from jsonb_array_elements(p_answer -> 'todos') t join test.endpoints e on e.id = t ->> 'endpoint_id'
$$;

-- The event of a todo: its id.
create function test.event_of(p_id text) returns text language sql as $$ select event_id::text from switchboard.todos where id::text = p_id $$;

-- Ends a todo as its holder would.
create function test.finish(p_id text, p_endpoint text default 'a') returns text language sql as $$
    select (switchboard.claim(test.endpoint(p_endpoint), p_id, 'w')).state;
    select (switchboard.complete(test.endpoint(p_endpoint), p_id, 'w')).state
$$;

-- A call over MCP, as the gateway passes it on.
create function test.call(p_tool text, p_args jsonb default '{}', p_endpoint text default 'a', p_shell jsonb default '{}') returns jsonb language sql as $$
    select switchboard.call_tool(e.slug, sha256(convert_to(e.credential, 'UTF8')), p_tool, p_args, p_shell) from test.endpoints e where e.name = p_endpoint
$$;
create function test.code(p_answer jsonb) returns text language sql immutable as $$ select p_answer #>> '{error,code}' $$;

-- Everything that an endpoint may do, over MCP, too, with any receivers it likes.
create function test.grant_all(p_endpoint text) returns void language sql as $$
    select switchboard.set_grant(test.endpoint(p_endpoint), null, array(select name from switchboard.tools()), 100, array(select source_type from switchboard.source_types()))
$$;

-- How many different todos an answer names that are stored. VOLATILE: it sees what was committed while the delivery waited.
create function test.known(p_answer jsonb) returns bigint language sql as $$
    select count(distinct t.id) from switchboard.todos t, jsonb_array_elements(p_answer -> 'todos') a where t.id::text = a ->> 'id'
$$;

-- What is stored, as isolation specs show it: a todo and its event on an endpoint.
create function test.deliveries() returns table (endpoint text, queue text, situation text, event boolean) language sql as $$
    select e.name, t.queue, test.situation(t.id::text), v.id is not null
    from switchboard.todos t join test.endpoints e on e.id = t.endpoint_id::text left join switchboard.events v on v.endpoint_id = t.endpoint_id and v.id = t.event_id
    order by e.name, t.id
$$;

-- The one receiver of an isolation spec: its id.
create function test.hook() returns text language sql stable as $$ select id::text from switchboard.endpoint_webhooks $$;
