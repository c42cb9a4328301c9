// OpenAI's npm client against an agent; prints what is wrong with each check as one JSON object.
import OpenAI from 'openai';

const [url, token] = process.argv.slice(2);
const client = new OpenAI({ baseURL: `${url}/v1`, apiKey: token, maxRetries: 0 });
const parameters = { type: 'object', properties: { town: { type: 'string' } } };
const weather = { type: 'function', name: 'weather', parameters, strict: false };

function equal(found, wanted) {
  if (JSON.stringify(found) !== JSON.stringify(wanted)) {
    throw new Error(`${JSON.stringify(found)} instead of ${JSON.stringify(wanted)}`);
  }
}

const checks = {
  async chat_text() {
    const messages = [{ role: 'user', content: 'Say It rains.' }];
    const found = await client.chat.completions.create({ model: 'lead', messages });
    equal(found.choices[0].message.content, 'It rains.');
  },
  async chat_stream() {
    const messages = [{ role: 'user', content: 'Say It rains.' }];
    const stream = client.chat.completions.stream({ model: 'lead', messages });
    equal(await stream.finalContent(), 'It rains.');
  },
  async chat_required_call() {
    const messages = [{ role: 'user', content: 'Call weather {"town": "Bern"}' }];
    const tools = [{ type: 'function', function: { name: 'weather', parameters } }];
    const request = { model: 'lead', messages, tools, tool_choice: 'required' };
    const found = await client.chat.completions.create(request);
    equal(found.choices[0].message.tool_calls[0].function.name, 'weather');
  },
  async response_text() {
    const found = await client.responses.create({ model: 'lead', input: 'Say It rains.' });
    equal(found.output_text, 'It rains.');
    equal((await client.responses.retrieve(found.id)).output_text, 'It rains.');
  },
  async response_stream() {
    const stream = client.responses.stream({ model: 'lead', input: 'Say It rains.' });
    const found = await stream.finalResponse();
    equal(found.output_text, 'It rains.');
  },
  async response_calls() {
    const input = 'Call weather {"town": "Bern"}';
    const first = await client.responses.create({ model: 'lead', input, tools: [weather] });
    const call = first.output.find((item) => item.type === 'function_call');
    const output = { type: 'function_call_output', call_id: call.call_id, output: 'rain' };
    const found = await client.responses.create({
      model: 'lead', input: [output], tools: [weather], previous_response_id: first.id,
    });
    equal(found.output_text, 'The result is rain');
  },
  async response_in_the_background() {
    let found = await client.responses.create({ model: 'lead', input: 'Say hi', background: true });
    for (let tries = 0; tries < 200 && found.status !== 'completed'; tries += 1) {
      await new Promise((resolve) => setTimeout(resolve, 50));
      found = await client.responses.retrieve(found.id);
    }
    equal(found.output_text, 'hi');
    await client.responses.delete(found.id);
  },
  async errors() {
    try {
      await client.responses.create({ model: 'nobody', input: 'x' });
    } catch (error) {
      equal([error.status, error.code], [404, 'model_not_found']);
      return;
    }
    throw new Error('no error');
  },
};

const problems = {};
for (const [name, check] of Object.entries(checks)) {
  try {
    await check();
    problems[name] = '';
  } catch (error) {
    problems[name] = String(error);
  }
}
console.log(JSON.stringify(problems));
