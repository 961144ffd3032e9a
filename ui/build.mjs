// SPDX-License-Identifier: Apache-2.0
// Builds the page into out/page, compressed; with the argument test, the tests of its pure parts into out/test.js.
import { mkdirSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { resolve } from 'node:path';
import { gzipSync } from 'node:zlib';
import { build } from 'esbuild';

// xterm.js styles by text, of an attribute and of style elements, which the page's content policy refuses. As a property
// and as style sheets (src/sheet.ts) it is allowed.
const styled = {
  name: 'styled',
  setup: (b) =>
    b.onLoad({ filter: /xterm\.mjs$/ }, (file) => {
      let source = readFileSync(file.path, 'utf8');
      const replace = (found, by, times) => {
        if (source.match(found)?.length !== times) throw new Error(`xterm.js does not have ${times} times ${found}: look at ui/build.mjs`);
        source = source.replace(found, by);
      };
      replace(/(\w+)\.setAttribute\("style",(`[^`]*`)\)/g, '$1.style.cssText=$2', 1);
      replace(/[\w.]+\.createElement\("style"\)/g, 'styleElement()', 3);
      return { contents: `import { styleElement } from ${JSON.stringify(resolve('src/sheet.ts'))};${source}` };
    }),
};

if (process.argv[2] === 'test') {
  const tests = readdirSync('test').filter((f) => f.endsWith('.test.ts')).map((f) => `import './${f}';`).join('');
  await build({
    stdin: { contents: tests, resolveDir: 'test' },
    outfile: 'out/test.js',
    bundle: true,
    platform: 'node',
    format: 'esm',
  });
} else {
  rmSync('out/page', { recursive: true, force: true });
  mkdirSync('out/page', { recursive: true });
  const built = await build({
    entryPoints: { app: 'src/main.tsx', style: 'src/style.css', terminal: 'src/terminal.ts' },
    external: ['./terminal.js'], // loaded when it is needed
    outdir: 'out/page',
    plugins: [styled],
    bundle: true,
    minify: true,
    target: 'es2022',
    format: 'esm',
    jsx: 'automatic',
    jsxImportSource: 'preact',
    legalComments: 'none',
    write: false,
  });
  const files = new Map(built.outputFiles.map((f) => [f.path.split('/').pop(), f.contents]));
  for (const name of ['index.html', 'icon.svg']) files.set(name, readFileSync(`src/${name}`));
  // Their licences ask that copies have the notice; minified files have no comments.
  const notices = ['preact', '@xterm/xterm', '@xterm/addon-fit'].map(
    (name) => `${name}\n\n${readFileSync(`node_modules/${name}/LICENSE`, 'utf8').trim()}\n`,
  );
  files.set('licenses.txt', Buffer.from(`The page contains:\n\n${notices.join('\n\n')}`));
  for (const [name, contents] of files) {
    const packed = gzipSync(contents, { level: 9 });
    packed[9] = 255; // the operating system: unknown, wherever it is built
    writeFileSync(`out/page/${name}.gz`, packed);
    console.log(`${name}: ${contents.length} bytes, ${packed.length} compressed`);
  }
}
